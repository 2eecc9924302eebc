"""The meaning of a checkpoint: components, layers, heads, parameters. A pure function of config and header.

Import `fit`, `glossary`, `memory` and `tree` from their modules; this package leaves them out so that it loads quickly.
"""

from headscope.anatomy.disentangled import Disentangled
from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.heads import Head, Layer, check_index, layers_of
from headscope.anatomy.parameters import Component, Parameter, Parameters
from headscope.anatomy.reading import read_anatomy
from headscope.anatomy.record import Anatomy
from headscope.anatomy.refusals import Refusal
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import Dimensions

__all__ = [
    "FAMILIES",
    "Anatomy",
    "Component",
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
