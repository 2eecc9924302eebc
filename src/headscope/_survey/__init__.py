"""The statistics of every head over a corpus: `hs.survey(model, documents)`, `headscope survey MODEL CORPUS`.

Documents are read one after the other and gathered into parts. A replica of the model turns a part into one Parquet
file; a file that is there is a part that is done. Aggregates are computed from these files. See docs/survey.md.
"""
