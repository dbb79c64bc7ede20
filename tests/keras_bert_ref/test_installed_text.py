from keras_bert_ref.cli import installed_text


def test_docstrings_become_documents(tmp_path, monkeypatch):
    module = tmp_path / "library" / "module.py"
    module.parent.mkdir()
    module.write_text('''"""The first line of this module is a sentence of prose.

Here is `another` one, which has **some** markup in it and two
lines. It even has a second sentence, as prose does.

```python
this = "code", and, never, prose.
```

Args:
    x: the list of arguments is not prose either, whatever it says.
"""
def function():
    """The first line of this module is a sentence of prose."""
    """Short."""
''')
    (tmp_path / "library" / "broken.py").write_bytes(b'"""\xff is no UTF-8, and no module."""')
    monkeypatch.setattr(installed_text, "_modules", lambda: sorted(module.parent.iterdir()))
    assert installed_text.write_installed_text(tmp_path / "text.txt") == (1, 2)
    assert (tmp_path / "text.txt").read_text() == (
        "The first line of this module is a sentence of prose.\n"
        "Here is another one, which has some markup in it and two lines. It even has a second "
        "sentence, as prose does.\n\n"
    )


def test_this_installation_holds_enough(tmp_path):
    modules, paragraphs = installed_text.write_installed_text(tmp_path / "text.txt")
    assert modules > 1000 and paragraphs > 20_000
    text = (tmp_path / "text.txt").read_text()
    assert len(text.split()) > 500_000
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == len(set(lines)) == paragraphs
