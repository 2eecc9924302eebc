"""Surveys of every head over a corpus: `hs.survey(model, documents)`, `headscope survey MODEL CORPUS`.

Documents are read one after the other and gathered into parts. A replica of the model turns a part into one Parquet
file; a file that is there is a part that is done. Aggregates are computed from these files. See docs/survey.md.

Read `run` first, which leads a survey from the corpus to its folder, then

- `corpus`, `readers`, `documents`: what is read;
- `loading`, `replica`, `on_ray`: the model at work; `job`: what a survey is made of, for all that measure;
- `sample`: the documents that all is measured over that is too dear for every word; `words`, `shapes`, `observe`: what
  heads do there;
- `folder`, `store`: the files, and how a survey resumes;
- `collect`, with `aggregates`, `syntax`, `examples`, `corpus_effects`, `writes`: what is made of all parts, and of the
  sample;
- `labels`: what each head does, in words;
- `result`, `survey_data`: a finished survey, read back and checked;
- `site`, `site_data`, `layout_2d`: its site and its figures.

Screens, the command line and the public functions may call it; nothing above it in the order of parts does.

    survey = hs.survey("-", ["a cat sat on the mat"], labels=True)
    survey["entropy"].strongest(3)
"""

import os


def is_survey(folder: str | os.PathLike[str]) -> bool:
    """Return True if a folder is that of a survey: it has a manifest and is not a checkpoint."""
    manifest, config = (os.path.isfile(os.path.join(folder, name)) for name in ("manifest.json", "config.json"))
    return manifest and not config
