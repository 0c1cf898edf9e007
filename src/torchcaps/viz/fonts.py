"""Fonts that have the characters of a picture, so that none of them is printed as an empty box."""

from collections.abc import Iterable

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

# Tried first, because a page looks better in one of these than in the first font that has the characters.
PREFERRED = ("Noto Sans CJK", "Source Han Sans", "WenQuanYi", "PingFang", "Microsoft YaHei", "SimHei", "Noto Sans")
BOXES = "Last Resort"  # a font whose every character is a box, which matplotlib brings
ADVICE = "install one, such as fonts-noto-cjk (Debian, Ubuntu) or Noto Sans CJK from notofonts.github.io"


def legible(figure: Figure) -> Figure:
    """Set all text of a figure in fonts that have its characters; raise if one has no font.

    Characters that the usual font has stay in it.
    """
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if more := more_fonts(text.get_text(), text.get_fontproperties()):
            text.set_fontfamily([*text.get_fontfamily(), *more])
    return figure


def more_fonts(text: str, usual: font_manager.FontProperties | None = None) -> list[str]:
    """Names of the fonts that a text needs besides the usual one."""
    font = font_manager.get_font(font_manager.findfont(usual or font_manager.FontProperties()))
    missing = {character for character in text if not character.isspace() and lacks(font, character)}
    return find_fonts(missing) if missing else []


def find_fonts(characters: Iterable[str]) -> list[str]:
    """Names of installed fonts that together have all the characters."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:  # installed since matplotlib made its list
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # not a font that matplotlib can read

    def rank(entry: font_manager.FontEntry) -> tuple[int, bool]:
        places = [place for place, name in enumerate(PREFERRED) if entry.name.startswith(name)]
        return (places[0] if places else len(PREFERRED), entry.style != "normal" or entry.weight not in (400, "normal"))

    names, missing = [], sorted(set(characters))
    for entry in sorted(font_manager.fontManager.ttflist, key=rank):
        if not missing or entry.name.startswith(BOXES):
            continue
        font = font_manager.get_font(entry.fname)
        still_missing = [character for character in missing if lacks(font, character)]
        if len(still_missing) < len(missing):
            names.append(entry.name)
        missing = still_missing
    if missing:
        raise ValueError(f"no installed font has the characters {''.join(missing[:10])}; {ADVICE}")
    return names


def lacks(font: FT2Font, character: str) -> bool:
    """Whether a font would print a box in place of a character."""
    return font.get_char_index(ord(character)) == 0
