# Starling: two commands do everything on a bare Debian or Ubuntu machine: `make train` and `make test`.
#   make setup            install what the build needs (idempotent; says what it installs)
#   make build            build/release/starling
#   make train ARGS="…"   build, then train two ranks on generated data
#   make test             build, then every test
#   make install PREFIX=  headers, libraries, program and CMake package
PRESET ?= release
PREFIX ?= /usr/local
ARGS ?=
JOBS ?= $(shell nproc)
CTEST_ARGS ?=

.PHONY: setup build train test test-python test-asan test-tsan fuzz check format install clean

setup:
	@tools/setup

build: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS)

# The program alone: the tests are half of the files.
train: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS) --target starling
	@build/$(PRESET)/starling train -c examples/digits.toml $(ARGS)

test: build
	@ctest --test-dir build/$(PRESET) --output-on-failure --no-tests=error -j $(JOBS) $(CTEST_ARGS)

test-python: build
	@tools/test_python

test-asan:
	@$(MAKE) --no-print-directory test PRESET=asan

test-tsan:
	@$(MAKE) --no-print-directory test PRESET=tsan

fuzz: setup
	@tools/fuzz

check:
	@tools/check_layers && tools/check_sizes && tools/check_format

format:
	@tools/check_format --fix

install: build
	@cmake --install build/$(PRESET) --prefix $(PREFIX)

clean:
	rm -rf build/release build/debug build/asan build/asan-program build/tsan build/tidy build/fuzz
