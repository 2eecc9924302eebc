"""The page's colour maps, for the report: equal steps of lightness in OKLCH, as web/src/colour.ts makes them."""

from __future__ import annotations

import math
from functools import cache

RGB = tuple[int, int, int]
STEPS = 64
"""Colours of a map in the report; a class name for each."""


def oklch(lightness: float, chroma: float, hue: float) -> RGB:
    """OKLCH (hue in degrees) to sRGB bytes (Ottosson 2020); chroma is lowered until the colour exists."""
    held = chroma
    while True:
        size, angle = max(held, 0.0), hue * math.pi / 180
        a, b = size * math.cos(angle), size * math.sin(angle)
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
        linear = (
            4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
        )
        if held > 0 and any(x < -0.0005 or x > 1.0005 for x in linear):
            held -= 0.005
            continue
        red, green, blue = (_byte(x) for x in linear)
        return red, green, blue


def _byte(linear: float) -> int:
    t = min(1.0, max(0.0, linear))
    return math.floor(255 * (12.92 * t if t <= 0.0031308 else 1.055 * t ** (1 / 2.4) - 0.055) + 0.5)


def sequential(t: float, *, dark: bool) -> RGB:
    """The map of weights at t, 0 to 1: from the page's ground to the strongest."""
    if dark:
        return oklch(0.205 + 0.755 * t, 0.015 + 0.15 * math.sin(math.pi * min(1, t * 0.9)), 275 - 175 * t)
    return oklch(0.985 - 0.735 * t, 0.004 + 0.16 * math.sin(math.pi * min(1, t * 0.82)), 215 + 65 * t)


def diverging(t: float) -> RGB:
    """The map of signed numbers at t, -1 to 1: blue, white at 0, orange."""
    if t == 0:
        return 255, 255, 255
    return oklch(1 - 0.52 * abs(t), 0.17 * abs(t) ** 0.8, 255 if t < 0 else 50)


@cache
def rules() -> str:
    """Style rules: classes s0 … s63 for the sequential map (light and dark), d0 … d64 for the diverging one."""
    light = "".join(_rule(f"s{n}", sequential(n / (STEPS - 1), dark=False)) for n in range(STEPS))
    dark = "".join(_rule(f"s{n}", sequential(n / (STEPS - 1), dark=True)) for n in range(STEPS))
    signed = "".join(_rule(f"d{n}", diverging(2 * n / STEPS - 1)) for n in range(STEPS + 1))
    return f"{light}{signed}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def _rule(name: str, colour: RGB) -> str:
    ink = "#000" if luminance(colour) > 0.179 else "#fff"
    red, green, blue = colour
    shown = f"#{red:02x}{green:02x}{blue:02x}"
    return f".{name}{{background:{shown};color:{ink};fill:{shown}}}"


def luminance(colour: RGB) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.2). Above 0.179 black text on it has more contrast than white."""
    parts = [byte / 255 for byte in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
