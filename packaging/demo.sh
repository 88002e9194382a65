#!/bin/sh
# Films a terminal for the documents: commands that are really run, with long waits cut short; what they print while
# they work is left out. Needs `sapo` on the path, PyPI's asciinema and npm's svg-term-cli.
# Usage: demo.sh FILE.svg
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:?a file for the film}" != play ]; then
    film=$(mktemp -d)
    trap 'rm -rf "$film"' EXIT
    HOME="$film" asciinema rec --quiet --idle-time-limit 1.2 --cols 116 --rows 28 \
        --command "sh '$here/demo.sh' play" "$film/demo.cast"
    svg-term --in "$film/demo.cast" --out "$1" --window --no-cursor
    exit
fi

# Types a command as a person does, then runs it, or what else is given.
show() {
    printf '\033[32m$\033[0m '
    printf '%s\n' "$1" | fold -w 1 | while IFS= read -r letter; do printf '%s' "$letter"; sleep 0.04; done
    echo
    shift
    "$@"
    sleep 2
}

# Ctrl-C after eight minutes, which validates and keeps what was learned so far.
learn() { timeout --signal INT 480 sapo run --solo --manifest home 2>&1 | cat; }

export NO_COLOR=1
cd "$HOME"
sleep 1
show 'sapo run --solo --manifest home' learn
show 'sapo chat "turn off the lamp in the hall"' sapo chat 'turn off the lamp in the hall'
show 'sapo export --to merged my-home' sapo export --to merged my-home
sleep 3
