# make demo | test | test-long | dev | lint | docs | shots | screens | wheels | bench | hardware | fuzz | reliability |
# soak | compare-simulator. Each makes what it needs, in virtual environments here.
PYTHON ?= python3
# What pip installs as torch: any build in pyproject.toml's range will do, for the CPU too.
TORCH ?= torch==2.13.0

# What the accelerators' tests run on: torch's real allocators over simulated devices, which need no
# GPU, no NPU and none of their libraries (csrc/devices/README.md).
ACCELERATORS := cuda-2.12.1 npu-2.13.0 cuda-2.15.0 npu-2.14.0
# The releases whose hooks are in the wheel that `make test` installs: those that the tests run on.
TESTED_HOOKS := torch==2.12.1 torch==2.13.0 torch==2.14.0 torch==2.15.0 torch-npu==2.13.0 torch-npu==2.14.0
# All accelerators but the first run only where what they depend on has changed since they passed, and in
# `make test-long`; so do most slow tests (tests/tiers.ini). `make passed`, after a complete `make test`, notes what all
# have passed with. The CPU's tests need the second hook.
ALWAYS := cuda-2.12.1
ALWAYS_HOOKS := torch==2.12.1 torch==2.13.0
HAVE_PASSED = $(if $(LONG_TESTS)$(filter compare-simulator $(patsubst %,test-%,$(filter-out $(ALWAYS),$(ACCELERATORS))),$(MAKECMDGOALS)),,$(shell \
	$(PYTHON) tests/helpers/passed.py devices && echo yes))

PIP_FLAGS := --disable-pip-version-check --quiet
# Python compiles what is imported, which takes a quarter of the time that pip takes to compile all of torch. Images
# of containers often tell it not to keep that: then each import of torch takes 5 seconds in place of 2.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := install $(PIP_FLAGS) --no-compile
# The pip that Python comes with may be years old: it takes twice as long as the newest to install what tests need.
VENV := PIP_QUIET=1 $(PYTHON) -m venv --upgrade-deps
# What builds pytracer: [build-system] of pyproject.toml, and what that installs itself.
BUILD_TOOLS = $(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d ',' | tr '"' "'") cmake ninja
.PHONY: demo test environments passed test-long hardware test-cpu test-viewers fuzz reliability soak compare-simulator $(ACCELERATORS:%=test-%) wheel wheels same-wheel core ready-hooks dev lint docs shots screens bench clean
.DELETE_ON_ERROR:

demo: .venv/build-tools
	@echo 'Compiling pytracer, which takes about a minute. The demo itself takes seconds.'
	.venv/bin/pip $(INSTALL) --no-build-isolation .
	.venv/bin/pytracer demo

# The tests, against the package as users install it: on accelerators with the wheel's prebuilt hooks alone.
# tests/helpers/devices_of_tests.py has the tests of each accelerator. Three suites run at a time, the
# longest first, because tests also wait; the output of a suite appears when it ends. At the end comes a line for each
# suite that ended, with the reasons of its skipped tests (tests/helpers/suite_summary.py).
test: export SUITES = $(CURDIR)/build/suites.txt
test:
	mkdir -p build && rm -f $(SUITES) && touch $(SUITES)
	trap 'cat $(SUITES)' EXIT; trap 'exit 1' TERM INT; $(MAKE) --jobs=3 --keep-going --output-sync=target test-cpu $(TESTED:%=test-%)

TESTED = $(if $(HAVE_PASSED),$(ALWAYS),$(ACCELERATORS))

# All that `make test` installs and compiles, which make does at the same time: downloads wait, and the compiler works.
environments: core .venv/tools ready-hooks $(TESTED:%=.venv-%/torch)

passed: ; $(PYTHON) tests/helpers/passed.py

# The tests, with the long forms of those that are statistical: many more cases, files and runs.
test-long: export LONG_TESTS = 1
test-long: test

# It is the longest suite: as the first target that the wheel completes, it starts first.
test-cpu: wheel
	$(WITHOUT_HOOKS)
	.venv/bin/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder

$(ACCELERATORS:%=test-%): test-%: .venv-%/torch wheel
	.venv-$*/bin/pip $(INSTALL) --no-deps --force-reinstall build/wheel/*.whl
	PYTRACER_BUILD=never tests/devices/simulate $(firstword $(subst -, ,$*)) .venv-$*/bin/python .venv-$*/bin/pytest \
		--device=$(firstword $(subst -, ,$*))

# Phases, as mosaic's and memory_viz's own code reads them. That is on GitHub alone; node has to be there.
test-viewers: wheel
	rm -rf build/mosaic
	git clone --quiet --depth 1 https://github.com/facebookresearch/mosaic build/mosaic
	curl -sSfo build/process_alloc_data.js \
		https://raw.githubusercontent.com/pytorch/pytorch/main/torch/utils/viz/process_alloc_data.js
	.venv/bin/pip $(INSTALL) pandas altair omegaconf tabulate
	PYTHONPATH=build/mosaic MEMORY_VIZ_JS=build/process_alloc_data.js .venv/bin/pytest tests/core/test_published_viewers.py

# More files than `make test` has, and others each time; a file that fails is named by its seed.
fuzz: wheel
	FUZZ_FILES=$(FUZZ_FILES) .venv/bin/pytest \
		tests/cpp/test_core_cpp.py tests/reading/test_reader_bounds.py -k "survives or any_file"
FUZZ_FILES ?= 100000

# The attacks of tests/reliability, for minutes or for an hour, and the page made of what they find.
reliability soak: .venv-cuda-2.12.1/torch wheel
	$(WITHOUT_HOOKS)
	.venv-cuda-2.12.1/bin/pip $(INSTALL) --no-deps --force-reinstall build/wheel/*.whl
	.venv/bin/python tests/reliability $(if $(filter soak,$@),--soak); status=$$?; \
		.venv/bin/python tests/reliability/page.py && exit $$status

# Compares the simulator with the real allocators for about half an hour: 22 million requests, and the counts in
# bench/results/. Three deviations of an allocator end its part, and all of them.
COMPARED := bench/results/simulator_long_run.json
compare-simulator: $(ACCELERATORS:%=.venv-%/torch) wheel
	rm -f $(COMPARED)
	for name in $(ACCELERATORS); do \
		.venv-$$name/bin/pip $(INSTALL) --no-deps --force-reinstall build/wheel/*.whl && \
		LONG_TESTS=1 SIMULATOR_RUNS=3 SIMULATOR_REQUESTS=160000 SIMULATOR_SEED=1000 SIMULATOR_RESULTS=$(COMPARED) \
			tests/devices/simulate $${name%%-*} .venv-$$name/bin/python .venv-$$name/bin/pytest \
			--device=$${name%%-*} --maxfail=3 tests/accelerator/test_simulator.py || exit 1; \
	done

# Tests of compiling need a package without prebuilt hooks.
WITHOUT_HOOKS = rm -rf .venv/lib/python*/site-packages/pytracer/_ready_hooks

wheel: .venv/tools ready-hooks
	rm -rf build/wheel
	.venv/bin/pip wheel $(PIP_FLAGS) --no-build-isolation --no-deps --wheel-dir build/wheel $(WITH_HOOKS) .
	.venv/bin/pip $(INSTALL) --no-deps --force-reinstall build/wheel/*.whl

# The library, compiled for the wheel while the hooks are.
core: .venv/build-tools
	.venv/bin/pip wheel $(PIP_FLAGS) --no-build-isolation --no-deps --wheel-dir build/core .

# The hooks of released versions, compiled against headers that are fetched from pip's registry.
ready-hooks: HOOKS ?= $(if $(HAVE_PASSED),$(ALWAYS_HOOKS),$(TESTED_HOOKS))
ready-hooks: .venv-wheels/tools
	.venv-wheels/bin/python .ci/wheels hooks --output build/ready_hooks $(HOOKS)
WITH_HOOKS = --config-settings=cmake.define.PYTRACER_READY_HOOKS=$(CURDIR)/build/ready_hooks

# The wheels of a release, in dist/: one for each Python of PYTHONS, with prebuilt hooks for all releases in
# .ci/wheels/pins.json, or for those in HOOKS. The same commit gives the same bytes.
PYTHONS ?= $(PYTHON)
wheels: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheels: .venv-wheels/tools
	rm -rf dist build/unrepaired
	.venv-wheels/bin/python .ci/wheels hooks --output build/ready_hooks $(HOOKS)
	for python in $(PYTHONS); do $$python -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir build/unrepaired $(WITH_HOOKS) . || exit 1; done
	.venv-wheels/bin/python .ci/wheels audit --output dist build/unrepaired/*.whl

# Whether that is true: the commit is built in two clones, in different folders and for users with different defaults.
# A release does this; `make test` does not, because all of the core is compiled twice.
same-wheel: HOOKS ?= torch==2.13.0
same-wheel:
	rm -rf build/same-wheel
	git clone --quiet . build/same-wheel/first
	umask 077 && git clone --quiet . build/same-wheel/the/second
	umask 022 && $(MAKE) -C build/same-wheel/first wheels 'HOOKS=$(HOOKS)'
	umask 077 && TZ=Asia/Tokyo $(MAKE) -C build/same-wheel/the/second wheels 'HOOKS=$(HOOKS)'
	sha256sum build/same-wheel/first/dist/* build/same-wheel/the/second/dist/*
	diff -r build/same-wheel/first/dist build/same-wheel/the/second/dist

.venv-wheels/tools: .ci/wheels/requirements.txt
	$(VENV) $(@D)
	$(@D)/bin/pip $(INSTALL) -r .ci/wheels/requirements.txt
	touch $@

# The fast tests, against this source tree: C++ changes need `make dev` again, Python ones do not.
dev: .venv-dev/build-tools
	.venv-dev/bin/pip $(INSTALL) --no-build-isolation --editable '.[test]'
	.venv-dev/bin/pytest -m 'not slow' --numprocesses=auto --maxprocesses=4 --dist=loadfile

lint: docs
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# The documentation as a site, in build/site. A link that does not resolve is an error.
docs: .venv/tools
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

# Pictures of the page to look at, in build/shots: seven files, three sizes of the window, both themes. And what the
# commands say of the recordings in tests/screens: written anew, to be reviewed in the diff.
shots screens: .venv/tools
	.venv/bin/pip $(INSTALL) --no-build-isolation --no-deps .
	PYTHONPATH=tests/helpers .venv/bin/python tests/*/$@.py

# What each costs, into bench/results/, and the tables and the picture made of that. On other devices, a real one
# too: `python bench --device cuda`, where pytracer is installed.
bench: .venv/build-tools .venv-cuda-2.12.1/torch .venv-npu-2.13.0/torch
	.venv/bin/pip $(INSTALL) --no-build-isolation '.[plot]'
	.venv/bin/python bench
	.venv-cuda-2.12.1/bin/pip $(INSTALL) --no-deps .
	tests/devices/simulate cuda .venv-cuda-2.12.1/bin/python bench --device cuda
	.venv-npu-2.13.0/bin/pip $(INSTALL) --no-deps .
	tests/devices/simulate npu .venv-npu-2.13.0/bin/python bench --device npu
	.venv/bin/python bench/plot.py
	.venv/bin/python bench/tables.py

# On a machine with a GPU, without a network: with the torch that is installed for PYTHON, and the tools that build
# pytracer. Within 25 minutes, into bench/results/hardware.md. PROGRAMS is a folder of further programs.
hardware:
	$(PYTHON) -m venv .venv-hardware
	# The packages of PYTHON: --system-site-packages would give those of its base, if it is of an environment itself.
	$(PYTHON) -c "import site; print(*(f'import site; site.addsitedir({p!r})' for p in site.getsitepackages()), sep='\n')" \
		> .venv-hardware/packages.pth
	mv .venv-hardware/packages.pth .venv-hardware/lib/python*/site-packages
	.venv-hardware/bin/pip $(INSTALL) --no-build-isolation --no-deps --no-index .
	.venv-hardware/bin/python tests/hardware.py $(if $(PROGRAMS),--programs $(PROGRAMS))

# What tests run with pytracer: Ray, and frameworks as PyPI has them, without what they ask for, which
# is torch and much else; what the parts that run import is listed here. Not on every torch, to save
# time, and not for every Python; for NPUs in `make test-long` alone.
RAY := ray==2.60.0
# The tools of tests/integrations, and of notebooks; torch is there already.
INTEGRATIONS := -r tests/integrations/requirements.txt
FRAMEWORKS := verl==0.9.1 torchtitan==0.3.0 tensordict==0.10.0 megatron-core==0.16.1
BESIDE_FRAMEWORKS := $(RAY) transformers==5.9.0 hydra-core==1.3.8 codetiming==1.4.0 tyro==1.0.15 \
	cloudpickle orjson pyvers==0.1.0 importlib_metadata
.venv-cuda-2.12.1/torch $(if $(LONG_TESTS),.venv-npu-2.13.0/torch): install_frameworks = $(if $(HAS_FRAMEWORKS), \
	$(@D)/bin/pip $(INSTALL) --use-pep517 $(BESIDE_FRAMEWORKS) && \
	$(@D)/bin/pip $(INSTALL) --no-deps $(FRAMEWORKS))
HAS_FRAMEWORKS := $(shell $(PYTHON) -c 'import sys; sys.version_info[:2] in ((3, 11), (3, 12)) and print(1)')

# torch comes first, of one version: pytracer does not depend on it, so that pip never looks for another.
.venv/torch .venv-dev/torch: %/torch:
	@echo 'Installing $(TORCH) into $*: some 200 MB.'
	$(VENV) $*
	$*/bin/pip $(INSTALL) '$(TORCH)' numpy
	touch $@

# pip's own environments for a build are in a new folder each time, which makes CMake compile everything again.
.venv/build-tools .venv-dev/build-tools: %/build-tools: %/torch pyproject.toml
	$*/bin/pip $(INSTALL) $(BUILD_TOOLS)
	touch $@

# What pytracer, its tests, the linters and the documentation need: pyproject.toml's lists, and the packages below.
.venv/tools: .venv/build-tools
	$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		more = project["optional-dependencies"]; print(*project["dependencies"], *more["test"], *more["docs"], sep="\n")' > $@
	.venv/bin/pip $(INSTALL) -r $@ $(RAY) $(INTEGRATIONS)

# torch, and torch_npu of the same version, without their dependencies, which are CUDA's libraries;
# what they need beside is listed here.
BESIDE_TORCH := filelock typing_extensions sympy networkx jinja2 fsspec numpy pyyaml setuptools
BESIDE_PYTRACER := nvidia-ml-py click rich hypothesis pytest pytest-timeout

$(ACCELERATORS:%=.venv-%/torch): .venv-%/torch:
	$(VENV) $(@D)
	$(@D)/bin/pip $(INSTALL) $(BESIDE_TORCH) $(BESIDE_PYTRACER)
	# torch_npu is compiled: Python warns when it does that, and in tests warnings are errors.
	$(@D)/bin/pip $(if $(filter npu-%,$*),$(filter-out --no-compile,$(INSTALL)),$(INSTALL)) --no-deps \
		-r tests/devices/requirements-$*.txt
	$(install_frameworks)
	touch $@

clean:
	rm -rf .venv .venv-* build
