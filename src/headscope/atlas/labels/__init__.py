"""Labels of heads: predictors of their strongest pairs, chosen on half of a corpus and borne out by the other.

Read `verdicts` first: the labels of all heads. `labelling` prepares and reports a search, `search` is the search;
`evidence` are the pairs and words that it sees, the strongest of what was observed of the sample among them. `passages`
has the classes of words, `predicates` the relations between two, `names` their sentences in three languages.

`collect` calls it at the end of a survey, and the site for its sentences.

    labels_of(observed, heads, pairs_of(observed), vectors).table
"""
