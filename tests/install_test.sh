#!/usr/bin/env bash
# install_test.sh SOURCE BUILD: installs BUILD into a folder of its own, then configures, builds and runs
# examples/find_package, copied out of the tree, against it.
set -euo pipefail
source_dir=$1 build_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/prefix" >"$work/install.log" || { tail "$work/install.log"; exit 1; }
if leaked=$(grep -rnE 'cmake_pch|ccache|fpch-preprocess|'"$source_dir/(starling|cmake)" "$work/prefix/lib"*/cmake); then
  echo "the installed package names files or options of the build:"; echo "$leaked"; exit 1
fi
cp -r "$source_dir/examples/find_package" "$work/app"
cmake -S "$work/app" -B "$work/app/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/app/build"

# Two ranks learn the line: the installed program starts itself, as one in the tree does.
"$work/app/build/app" -n 2 --epochs 20 --lr 0.5 --run-dir "$work/run"
python3 - "$work/run/events.jsonl" <<'END'
import json, sys
result = [json.loads(line) for line in open(sys.argv[1])][-1]
print("ranks", result["ranks"], "test accuracy", result["test_accuracy"])
assert result["ranks"] == 2 and result["test_accuracy"] > 0.95, result
END
