"""What a checkpoint means: components, layers, heads, parameters. A pure function of config and header."""

from headscope.anatomy.families import FAMILIES, Family, family_of
from headscope.anatomy.heads import Head, Layer, check_index, layers_of
from headscope.anatomy.parameters import Component, Parameter, Parameters
from headscope.anatomy.reading import Anatomy, Dimensions, read_anatomy

__all__ = [
    "FAMILIES",
    "Anatomy",
    "Component",
    "Dimensions",
    "Family",
    "Head",
    "Layer",
    "Parameter",
    "Parameters",
    "check_index",
    "family_of",
    "layers_of",
    "read_anatomy",
]
