"""What a checkpoint means: components, layers, heads, parameters. A pure function of config and header."""

from headscope.anatomy.families import FAMILIES, Family, family_of
from headscope.anatomy.fit import Fit, fit
from headscope.anatomy.glossary import ConfigTable, Field, explain_config
from headscope.anatomy.heads import Head, Layer, check_index, layers_of
from headscope.anatomy.memory import Memory, memory
from headscope.anatomy.parameters import Component, Parameter, Parameters
from headscope.anatomy.reading import read_anatomy
from headscope.anatomy.record import Anatomy
from headscope.anatomy.refusals import Refusal
from headscope.anatomy.sizes import Dimensions
from headscope.anatomy.tree import Node, tree

__all__ = [
    "FAMILIES",
    "Anatomy",
    "Component",
    "ConfigTable",
    "Dimensions",
    "Family",
    "Field",
    "Fit",
    "Head",
    "Layer",
    "Memory",
    "Node",
    "Parameter",
    "Parameters",
    "Refusal",
    "check_index",
    "explain_config",
    "family_of",
    "fit",
    "layers_of",
    "memory",
    "read_anatomy",
    "tree",
]
