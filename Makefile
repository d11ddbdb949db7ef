# Starling. On a bare Debian or Ubuntu machine, `make train` and `make test` install, build and run
# everything.
#   make setup            Installs what the build needs. Idempotent.
#   make build            Builds build/release/starling and the tests.
#   make train ARGS="…"   Builds the program and trains two ranks on generated data.
#   make test             Builds and runs the tests, but for those that only make check-deep runs.
#   make check            Runs the quick checks: layers, sizes, format, pages.
#   make check-deep       Runs what takes hours: all sanitizers on everything, fuzzing, clang-tidy on all
#                         files.
#   make docs             Builds the manual as a site in build/site.
#   make wheel            Builds dist/starling_training-*.whl for pip: program, plug-in, CMake package.
#   make sbom             Writes build/sbom.json, the list of all components (CycloneDX).
#   make install PREFIX=  Installs headers, libraries, program, manual pages and CMake package.
PRESET ?= release
PREFIX ?= /usr/local
ARGS ?=
JOBS ?= $(shell nproc)
CTEST_ARGS ?= -LE deep

.PHONY: setup build train test test-python test-asan test-tsan fuzz check check-deep docs format install wheel sbom clean

setup:
	@tools/setup

build: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS)

# Builds only the program, because the tests are half of the files.
train: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS) --target starling
	@build/$(PRESET)/starling train -c examples/digits.toml $(ARGS)
	@echo "The run folder holds the trained weights. Next: a program of your own, docs/tutorial/first-program.md" >&2

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
	@tools/check_layers && tools/check_sizes && tools/check_format && tools/check_docs && tools/sbom --check

# ARGS names stages, for example ARGS="tidy repeat".
check-deep: setup
	@tools/check_deep $(ARGS)

# Also installs Doxygen, and MkDocs into build/venv-docs.
docs:
	@tools/build_docs

format:
	@tools/check_format --fix

sbom: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS) --target install_parts
	@tools/sbom build/$(PRESET)

# Builds only what it installs, because the tests are half of the files.
install: setup
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS) --target install_parts
	@cmake --install build/$(PRESET) --prefix $(PREFIX)

# Installs Python's headers and, into build/venv-wheel, auditwheel. tools/test_wheel tries the wheel in an
# empty Debian.
wheel: setup
	@tools/build_wheel --install
	@cmake --preset $(PRESET) >build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build build/$(PRESET) -j $(JOBS) --target wheel_parts
	@tools/build_wheel build/$(PRESET)

clean:
	rm -rf dist build/wheel build/wheel-test build/release build/debug build/asan build/asan-program build/tsan build/tidy build/fuzz build/docs build/site build/deep-*
