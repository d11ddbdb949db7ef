#!/usr/bin/env bash
# install_test.sh SOURCE BUILD installs BUILD into a temporary folder. It copies examples/find_package and
# examples/extend out of the tree, then configures, builds and runs the copies against the installed package.
set -euo pipefail
source_dir=$1 build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/prefix" >"$work/install.log" || { tail "$work/install.log"; exit 1; }
if leaked=$(grep -rnE 'cmake_pch|ccache|fpch-preprocess|'"$source_dir/(starling|cmake)" "$work/prefix/lib"*/cmake); then
  echo "the installed package names files or options of the build:"; echo "$leaked"; exit 1
fi
for file in man/man1/starling.1 man/man1/starling-train.1 man/man1/starling-bench-comm.1 bash-completion/completions/starling \
  zsh/site-functions/_starling fish/vendor_completions.d/starling.fish; do
  [ -s "$work/prefix/share/$file" ] || { echo "share/$file is not installed"; exit 1; }
done
bash -n "$work/prefix/share/bash-completion/completions/starling"
if command -v mandoc >/dev/null; then # every warning fails the test; style messages do not
  mandoc -Tlint -Wwarning "$work/prefix/share/man/man1/"*.1
fi
cp -r "$source_dir/examples/find_package" "$work/app"
cmake -S "$work/app" -B "$work/app/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/app/build"

# Two ranks learn the line. The program starts its ranks itself.
"$work/app/build/app" -n 2 --epochs 20 --lr 0.5 --run-dir "$work/run"
python3 - "$work/run/events.jsonl" <<'END'
import json, sys
result = [json.loads(line) for line in open(sys.argv[1])][-1]
print("ranks", result["ranks"], "test accuracy", result["test_accuracy"])
assert result["ranks"] == 2 and result["test_accuracy"] > 0.95, result
END

# An exchange and a codec that are not Starling's, from a program outside the tree.
cp -r "$source_dir/examples/extend" "$work/extend"
cmake -S "$work/extend" -B "$work/extend/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/extend/build" --target extend_exchange extend_codec
"$work/extend/build/extend_exchange" -n 2 --global-batch 8 --every 2 --steps 6 --run-dir "$work/elastic"
"$work/extend/build/extend_codec" -n 2 --global-batch 8 --codec grid:step=0.01 --steps 6 --run-dir "$work/grid"
python3 - "$work/elastic/events.jsonl" "$work/grid/events.jsonl" <<'END'
import json, sys
elastic, grid = ([json.loads(line) for line in open(path)][-1]["strategy"] for path in sys.argv[1:])
assert (elastic["exchange"], elastic["rounds"]) == ("elastic", 3), elastic
assert grid["compression"] == 2, grid
END
