#!/bin/sh
# Installs this clone into an environment, and says every 20 seconds what pip is doing.
# Where llama.cpp, or something else, can't be compiled, or with COMPILE=no, torch samples instead.
# Usage: install.sh PYTHON EXTRAS, in the root of the repository
set -u
python=$1
extras=$2
log=$(mktemp)
pid=
trap 'rm -f "$log"' EXIT
# What runs in the background ignores Ctrl-C: pip would go on beside that of the next `make`.
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; exit 130' INT TERM HUP

pip_install() {
    "$python" -m pip install --progress-bar off --disable-pip-version-check -c constraints.txt "$@" >"$log" 2>&1 &
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
if [ "${COMPILE:-yes}" != no ]; then
    pip_install --editable ".[$extras]" && exit 0
    grep -q 'Failed building wheel for' "$log" || { cat "$log" >&2; exit 1; }
    grep 'Failed building wheel for' "$log" >&2
    echo "not everything can be compiled here: installing without llama.cpp, so that torch samples, slower" >&2
fi
"$python" packaging/wheels.py slim || exit 1
without=$(echo ",$extras," | sed 's/,llama,/,/; s/^,//; s/,$//')
pip_install --find-links dist --editable ".[$without]" || { cat "$log" >&2; exit 1; }
