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
output=$("$work/app/build/app")
echo "$output"
[ "$output" = "lenet5 2x10" ]
