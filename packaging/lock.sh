#!/bin/sh
# Renews packaging/requirements.lock: the hashes of all files on PyPI of what `sapo-edge[starter,llama,web]` installs, in
# the versions of constraints.txt. torch and what only torch needs is left out: which build is right depends on the machine.
# Needs uv and the network.
set -eu
cd "$(dirname "$0")/.."
directory=$(mktemp -d)
trap 'rm -r "$directory"' EXIT
grep -v '^torch==' constraints.txt >"$directory/constraints"
echo "torch; python_version < '3'" >"$directory/overrides"
uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --extra starter --extra llama --extra web --constraints "$directory/constraints" \
    --overrides "$directory/overrides" --no-emit-package sapo-edge --output-file packaging/requirements.lock
echo "$(grep -c '^[a-z].*==' packaging/requirements.lock) packages"
