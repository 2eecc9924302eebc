"""Texts that tell implementations apart: of mixed lengths, with upper case, four of them longer than 128 tokens."""

from __future__ import annotations

_LONG = (
    "The animal didn't cross the street because it was too tired, and the street was too wide for it. ",
    "On Tuesday the committee in Geneva published 47 pages about water, bread and the price of paper. ",
    "Rain fell all night on the old harbour, and by the morning every boat had a hand's breadth of water in it. ",
    "She counted the coins twice, wrote the sum into the book, and closed the shop before the others came. ",
)

PROBES = (
    "The animal didn't cross the street because it was too tired.",
    "A cat sat on the mat.",
    "Hello!",
    "How do I reset my password?",
    "I forgot my login details and can't sign in.",
    "NASA LAUNCHED A NEW TELESCOPE ON MONDAY.",
    "Paris is the capital of France; Berlin is the capital of Germany.",
    "The bank raised its interest rates by 0.25 per cent.",
    "They sat on the bank of the river and watched the boats.",
    "Who wrote Moby-Dick, and when was it published?",
    "Herman Melville's novel about a white whale appeared in 1851.",
    "The patient was given 20 mg twice a day for two weeks.",
    "def add(a, b): return a + b",
    "Is there a train from Tokyo to Osaka after nine?",
    "Nobody likes waiting in the rain without an umbrella, least of all the dog.",
    "The committee hasn't decided yet whether the meeting will be held in March or in April.",
    *(sentence * times for sentence, times in zip(_LONG, (7, 8, 7, 8), strict=True)),
)
"""The texts that parity and doctor read by default."""
