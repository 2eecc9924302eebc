"""Answers as plain records, below everything that makes them: arrays that know their axes, lazy maps, tables of heads.

Read `arrays.py` (arrays with named axes, the tokens of an axis) and `lazy_maps.py`, then `head_values.py` (what a
number per head means, its values and differences) and `table.py` (tables of them). `effect_records.py`,
`score_parts.py`, `explained.py`, `match_record.py` and `verify_report.py` are the records that traces and models
return; `answers.py` describes their JSON. Any part may import from here; nothing here imports another part.

    table = hs.open().trace("The cat sat on the mat.").statistics()
    table["entropy"][3, 5], table.of((3, 5))
"""
