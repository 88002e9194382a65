#!/bin/sh
# Installs this clone into an environment, and says every 20 seconds what pip is doing.
# Nothing is compiled, unless with COMPILE=yes llama.cpp.
# Usage: install.sh PYTHON EXTRAS, in the root of the repository
set -u
python=$1
extras=$2
log=$(mktemp)
pid=
trap 'rm -f "$log"' EXIT
# What runs in the background ignores Ctrl-C: pip would go on beside that of the next `make`.
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; exit 130' INT TERM HUP

# Python compiles what is imported, a third of what pip would.
pip_install() {
    "$python" -m pip install --no-compile --progress-bar off --disable-pip-version-check -c constraints.txt "$@" \
        >"$log" 2>&1 &
    pid=$!
    seconds=0
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 20)) = 0 ] && echo "  $seconds s: $(tail -n 1 "$log" | cut -c 1-100)"
    done
    wait "$pid"
    status=$?
    pid=
    return "$status"
}

# PyPI's torch brings 3 GB of CUDA, which only a card of NVIDIA's needs (WSL shows one as dxg). Where PyTorch's index
# can't be reached, PyPI's it is. That index lacks some versions of what torch requires.
if [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    pip_install --retries 1 --no-deps --index-url https://download.pytorch.org/whl/cpu torch
fi
# With a C++ compiler, llama.cpp for this processor: pip prefers the wheel +sapo.native.
kinds=slim
[ "${COMPILE:-no}" != yes ] || kinds="slim native"
# shellcheck disable=SC2086 -- the kinds are words
"$python" packaging/wheels.py $kinds || exit 1
pip_install --find-links dist --editable ".[$extras]" || { cat "$log" >&2; exit 1; }
"$python" -m sapo_edge.trimming
