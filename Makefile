# Two commands: `make run` labels sample queries, `make test` runs every check. Both set up what is missing in .venv.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt vendor/pin.toml vendor/fetch.py qcls_gguf/native/src/qcls.h \
           qcls_gguf/native/src/qcls.cpp qcls_gguf/native/src/score.cpp qcls_gguf/native/src/probe.cpp \
           qcls_gguf/native/src/attention.cpp \
           $(wildcard qcls_gguf/native/cpu/*.cpp qcls_gguf/native/cpu/*.h) \
           $(wildcard qcls_gguf/native/cuda/*.cu qcls_gguf/native/cuda/*.cuh qcls_gguf/native/cuda/*.h) \
           $(wildcard patches/*)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test wheel clean

run: $(VENV)/.built
	$(BIN)/qcls-gguf run --interactive \
	    --query "red summer dress for girls" \
	    --query "cheap slim fit jeans for men" \
	    --query "孕妇连衣裙 棉 宽松" \
	    --query "light pink cashmere sweater for date night" \
	    --query "when does the shop open"

test: $(VENV)/.checked
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

wheel: $(VENV)/.tools
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf build dist $(VENV) vendor/llama.cpp

# The build tools are installed beside the package, so that a rebuild finds the same ones and compiles only changes.
$(VENV)/.tools:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qcls-gguf needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) scikit-build-core cmake ninja
	touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	@echo "building the patched llama.cpp and the package: a few minutes the first time"
	$(INSTALL) --no-build-isolation --editable .
	touch $@

$(VENV)/.checked: $(VENV)/.built
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	touch $@
