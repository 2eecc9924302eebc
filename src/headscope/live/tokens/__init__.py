"""The tokens that queries and keys stand for, followed through the forward pass from the lookup of their ids.

Read `following` first, which sees each operator; `sources` says where a result's vectors come from, `facts` and
`known_tensors` keep what is known of tensors, `lookups` finds the ids. `naming` names what a trace's axes stand for, as
`axes` has them.

Everything in `live` may call it.
"""
