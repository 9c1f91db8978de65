"""The API reference as Sphinx knows one: objects that can be found, linked and looked up.

The text is docs/user/api.md, which is made from signatures and docstrings and can be read on a
forge. Its sections become objects of Sphinx' Python domain, so that the search shows them by name,
objects.inv lists them for other projects, and a name in the text of any page leads to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.transforms.post_transforms import SphinxPostTransform

PAGE = "docs/user/api"
_DECLARED = re.compile(r"(class|def) (\w+)")


def _sections(node: nodes.Element) -> Iterator[nodes.section]:
    return (one for one in node.children if isinstance(one, nodes.section))


def _title(section: nodes.section) -> str:
    return section.next_node(nodes.title).astext()


def _note(app: Sphinx, document: nodes.document) -> None:
    if app.env.current_document.docname != PAGE:
        return
    domain = cast(PythonDomain, app.env.domains["py"])
    whole = next(_sections(document))
    for module in _sections(whole):
        name = _title(module)
        domain.note_module(name, _anchor(module, name), "", "", False)
        domain.note_object(name, "module", name)
        for member in _sections(module):
            _note_member(domain, name, member)


def _note_member(domain: PythonDomain, module: str, section: nodes.section) -> None:
    name = f"{module}.{_title(section)}"
    domain.note_object(name, _kind(section), _anchor(section, name))
    for block in section.findall(nodes.literal_block):
        declared = _DECLARED.match(block.astext())
        if declared is None:
            continue
        block["language"] = "python"
        if name.endswith(f".{declared[2]}") or declared[1] == "class":
            continue
        method = f"{name}.{declared[2]}"
        domain.note_object(method, "method", _anchor(block, method))


def _kind(section: nodes.section) -> str:
    text = section.children[1].astext() if len(section.children) > 1 else ""
    declared = _DECLARED.match(text)
    if declared is not None:
        return "class" if declared[1] == "class" else "function"
    if text.startswith("An exception"):
        return "exception"
    return "class" if text.startswith("One of") else "data"


def _anchor(node: nodes.Element, name: str) -> str:
    node["ids"].append(name)
    return name


class Names(SphinxPostTransform):
    """Links full names such as `sumpter.push_pull`, where they are not links already."""

    default_priority = 20
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        here = self.env.current_document.docname
        objects = cast(PythonDomain, self.env.domains["py"]).objects
        for literal in list(self.document.findall(nodes.literal)):
            found = objects.get(literal.astext().removesuffix("()"))
            if found is None or _is_linked(literal):
                continue
            address = self.app.builder.get_relative_uri(here, found.docname)
            uri = f"{'' if here == found.docname else address}#{found.node_id}"
            link = nodes.reference("", "", internal=True, refuri=uri)
            literal.replace_self(link)
            link += literal


def _is_linked(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.reference | nodes.title):
            return True
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", _note)
    app.add_post_transform(Names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
