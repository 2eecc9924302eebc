"""Prints pip's settings of where packages come from as a configuration of uv, which does not read them."""

import ast
import json
import os
import subprocess
import sys

ORDER = ("global", "install", ":env:")
"""Sections of pip's settings; a later one replaces an earlier one."""

settings: dict[str, dict[str, list[str]]] = {section: {} for section in ORDER}
spoken = {**os.environ, "PIP_QUIET": "0"}  # it would list nothing
listed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], encoding="utf-8", env=spoken)
for line in listed.splitlines():
    name, _, value = line.partition("=")
    section, _, key = name.rpartition(".")
    if section in ORDER:
        settings[section][key] = ast.literal_eval(value).split()
merged = settings["global"] | settings["install"] | settings[":env:"]

print('index-strategy = "unsafe-best-match"')  # as pip: the newest of all indexes
for key in ("extra-index-url", "find-links"):
    if key in merged:
        print(f"{key} = {json.dumps(merged[key])}")
if "index-url" in merged:
    print(f"index-url = {json.dumps(merged['index-url'][0])}")
if merged.get("no-index", ["0"])[0].lower() in ("1", "true", "yes", "on"):
    print("no-index = true")
