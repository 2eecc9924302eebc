"""The meaning of a checkpoint: components, layers, heads, parameters. A pure function of config and header.

Read `schema.py` (a family's table) and `families/`, then `read_anatomy.py`, which gives every tensor a role, and
`anatomy_record.py`, the `Anatomy`. `heads.py` slices heads, `parameters.py` has the tables of parameters and their
names in files. `sizes.py` and `layer_rules.py` read config.json, `tops.py` sorts what is beyond the base model, and
`refused_checkpoints.py` says what would be computed wrongly. `glossary.py` explains a config, `tree.py` draws the
modules, and `fit.py` says what another class loads.

It reads checkpoints; everything that computes calls it. Import `fit`, `glossary` and `tree` from their modules: this
package leaves them out so that it loads quickly.

    read_anatomy(checkpoint).parameter("layer.query.weight", 3).stored    # the tensor's name in the file
"""

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.heads import Head, Layer, check_index, layers_of
from headscope.anatomy.layer_rules import Disentangled
from headscope.anatomy.parameters import Component, Components, Parameter, Parameters
from headscope.anatomy.read_anatomy import read_anatomy
from headscope.anatomy.refused_checkpoints import Refusal
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import Dimensions

__all__ = [
    "FAMILIES",
    "Anatomy",
    "Component",
    "Components",
    "Dimensions",
    "Disentangled",
    "Family",
    "Head",
    "Layer",
    "Parameter",
    "Parameters",
    "Refusal",
    "check_index",
    "family_of",
    "layers_of",
    "read_anatomy",
]
