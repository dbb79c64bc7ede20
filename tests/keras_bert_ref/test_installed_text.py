from pathlib import Path

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
    roots = {"library": module.parent, "absent": tmp_path / "absent"}
    monkeypatch.setattr(installed_text, "_roots", lambda: roots)
    file = tmp_path / "text" / "library.txt"
    assert installed_text.write_installed_text(tmp_path / "text") == ([str(file)], 1, 2)
    assert list(file.parent.iterdir()) == [file]
    assert file.read_text() == (
        "The first line of this module is a sentence of prose.\n"
        "Here is another one, which has some markup in it and two lines. It even has a second "
        "sentence, as prose does.\n\n"
    )


def test_this_installation_holds_enough(tmp_path):
    files, modules, paragraphs = installed_text.write_installed_text(tmp_path)
    assert modules > 1000 and paragraphs > 20_000
    assert {f"{tmp_path}/{name}.txt" for name in ("keras", "numpy", "python")} < set(files)
    text = "".join(Path(file).read_text() for file in files)
    assert len(text.split()) > 500_000
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == len(set(lines)) == paragraphs
