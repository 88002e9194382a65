#!/bin/sh
# Checks what pip can't install: Python's venv module, and with COMPILE=yes a C++ compiler for llama.cpp.
# Installs it with apt where that needs no password; otherwise names the command and ends.
# Usage: system-packages.sh PYTHON
set -u
python=${1:-python3}

if ! "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "sapo-edge needs Python 3.11 or newer; '$python' is not. Install one and run: make PYTHON=/path/to/python3.13" >&2
    echo "Or run: sh install.sh, which fetches one" >&2
    exit 1
fi
if ! "$python" -c 'import sys; raise SystemExit(sys.version_info >= (3, 14))'; then
    echo "Two of libp2p's libraries have no wheels for this Python: they are compiled, which takes a C compiler." >&2
    echo "With Python 3.11 to 3.13 nothing is: make PYTHON=/path/to/python3.13, or sh install.sh, which fetches one" >&2
fi

missing=""
# Debian's python3-venv is for the system's own Python alone.
venv=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing=" $venv"
command -v make >/dev/null 2>&1 || missing="$missing make"
if [ "${COMPILE:-no}" = yes ]; then
    command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || missing="$missing g++"
fi
[ -z "$missing" ] && exit 0

if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ]; then
        run=""
    elif sudo -n true 2>/dev/null; then
        run="sudo -n"
    else
        echo "sapo-edge needs system packages. Install them with: sudo apt-get install$missing" >&2
        exit 1
    fi
    echo "installing system packages:$missing" >&2
    # shellcheck disable=SC2086 -- the lists are words
    $run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq $missing && exit 0
    echo "apt-get failed. Install by hand:$missing" >&2
    exit 1
fi
echo "sapo-edge needs:$missing. Install them with your system's package manager (on macOS: xcode-select --install)" >&2
exit 1
