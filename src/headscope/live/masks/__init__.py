"""The masks and score terms that a model's attention is given, as rules and small tables, verified cell for cell.

Read `finding` first: the rule behind a mask, with `rules` and `levels`. `cells` are maps that exist only as functions;
`rows` are batches with a mask for each row, `generated` the mask of a sequence generated pass by pass. `flex` and
`score_mods` read flex attention's.

Everything in `live` may call it.
"""
