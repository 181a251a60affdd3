"""Programs that a page shows and the tests run elsewhere are the same programs."""

from __future__ import annotations

from tests.docs.snippets import ROOT, blocks


def test_the_program_for_node_is_the_one_that_is_run() -> None:
    """The page about other languages shows examples/node/publish.js word for word."""
    page = ROOT / "docs/howto/publish-from-another-language.md"
    shown = [block.text for block in blocks(page) if block.language == "javascript"]
    assert shown == [(ROOT / "examples/node/publish.js").read_text("utf-8")]
