"""The tokens that queries and keys stand for, followed through the forward pass from the lookup of their ids.

Read `following` first, which sees each operator; `sources` has the rules for where a result's vectors come from, and
remembers results; `facts` keeps what is known of tensors; `lookups` finds the ids. `naming` names what a
trace's axes stand for, as `axes` has them.

    >>> from headscope.live.names.axes import vocabulary
    >>> name, special = vocabulary(["[PAD]", "the", "cat"])
    >>> [name(number) for number in (1, 2)]
    ['the', 'cat']

Everything in `live` may call it.
"""
