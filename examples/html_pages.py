"""Write the manual as HTML pages with links into a folder that anybody can publish.

Usage: python examples/html_pages.py FOLDER

The pages are those of `man/`, which `python -m sentkit.manual man` makes from `sentkit/pages/` and
the flags. `index.html` lists them in the groups of `sentkit -h`, behind the pipes of the README.
Nothing is loaded from elsewhere.
"""

import argparse
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from sentkit import __version__
from sentkit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
PAGE = r"sentkit(?:-[a-z-]+)?"
REFERENCE = re.compile(rf"(?:<b>({PAGE})</b>|\b({PAGE}))\([1357]\)")  # the name can be bold
FONT = re.compile(r"\\f([BIRP])(.*?)(?=\\f|$)", re.DOTALL)
TAGS = {"B": "b", "I": "i"}
SPECIAL = {
    r"\(aq": "'",
    r"\(dq": '"',
    r"\(bu": "•",
    r"\(em": "—",
    r"\(en": "\N{EN DASH}",
    r"\(co": "©",
    r"\(+-": "±",
}
STYLE = """
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; }
pre { overflow-x: auto; padding: .6rem .8rem; font-size: .9rem; line-height: 1.4;
      background: light-dark(#f3f4f6, #22262b); border-radius: .3rem; }
dl { margin: 0; } dt { margin-top: .6rem; } dd { margin: 0 0 0 1.5rem; }
nav { font-size: .9rem; } a { color: light-dark(#0b57a4, #7db7f0); }
p, dd, dt, li { overflow-wrap: break-word; } .flag { white-space: nowrap; }
table { border-spacing: 0; }
td { padding: .15rem .8rem .15rem 0; vertical-align: top; } td:first-child { white-space: nowrap; }
"""


@dataclass
class ManPage:
    """A page of `man/`: its name, its section, the sentence of NAME, and its lines."""

    name: str
    section: str
    summary: str
    lines: list[str]

    @property
    def file(self) -> str:
        """Its HTML file. Names are unique, also without their section."""
        return f"{self.name}.html"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    man_pages = read_pages()
    files = {page.name: page.file for page in man_pages}
    for page in man_pages:
        title = f"{page.name}({page.section})"
        body = Converter(files).convert(page.lines)
        (folder / page.file).write_text(document(title, page.summary, body))
    (folder / "index.html").write_text(index(man_pages))
    print(f"{len(man_pages) + 1} pages in {folder}; the first is index.html")


def read_pages() -> list[ManPage]:
    """Read all pages of `man/`, in the order of their sections and names."""
    man_pages = []
    for path in sorted((ROOT / "man").glob("man*/*")):
        lines = path.read_text().splitlines()
        name_line = plain(lines[lines.index(".SH NAME") + 1])
        name, _, summary = name_line.partition(" - ")
        man_pages.append(ManPage(name, path.suffix[1:], summary, lines))
    return man_pages


def plain(text: str) -> str:
    """The text of a line of roff, without fonts and with its characters."""
    text = re.sub(r"\\f[BIRP]", "", text)
    return characters(text)


def characters(text: str) -> str:
    for name, character in SPECIAL.items():
        text = text.replace(name, character)
    unknown = re.search(r"\\\(..", text)
    if unknown is not None:
        raise ValueError(f"unknown character {unknown[0]} in: {text}")
    return text.replace(r"\&", "").replace(r"\-", "-").replace(r"\e", "\\")


@dataclass
class Converter:
    """Converts the requests of roff that our pages use. An unknown one is an error."""

    files: dict[str, str]
    html: list[str] = field(default_factory=list)
    paragraph: list[str] = field(default_factory=list)
    in_list: bool = False
    in_item: bool = False
    in_example: bool = False

    def convert(self, lines: list[str]) -> str:
        term_follows = False
        for line in lines:
            if self.in_example:
                self.add_example_line(line)
            elif term_follows:
                self.begin_item(line)
                term_follows = False
            elif line.startswith("."):
                request, _, argument = line[1:].partition(" ")
                if request == "TP":
                    self.end_paragraph()
                    term_follows = True
                else:
                    self.apply(request, argument)
            else:
                self.paragraph.append(self.inline(line))
        self.end_list()
        return "\n".join(self.html)

    def apply(self, request: str, argument: str) -> None:
        if request in ("SH", "SS"):
            self.end_list()
            level = {"SH": 2, "SS": 3}[request]
            heading = plain(argument).strip('"')
            anchor = re.sub(r"\W+", "-", heading.lower())
            self.html.append(f'<h{level} id="{anchor}">{escape(heading)}</h{level}>')
        elif request == "PP":
            self.end_list()
        elif request == "nf":
            self.end_paragraph()
            self.html.append("<pre>")
            self.in_example = True
        elif request == "B":
            self.paragraph.append(f"<b>{self.inline(argument)}</b>")
        elif request == "br":
            self.paragraph.append("<br>")
        elif request not in ("TH", "in"):
            raise ValueError(f"unknown request .{request}")

    def add_example_line(self, line: str) -> None:
        if line == ".fi":
            self.html[-1] += "</pre>"
            self.in_example = False
            return
        text = self.inline(line)
        if self.html[-1] == "<pre>":  # a newline behind <pre> is not a part of the text
            self.html[-1] += text
        else:
            self.html[-1] += "\n" + text

    def begin_item(self, term: str) -> None:
        if not self.in_list:
            self.html.append("<dl>")
            self.in_list = True
        self.html.append(f"<dt>{self.inline(term.removeprefix('.B '))}</dt><dd>")
        self.in_item = True

    def end_paragraph(self) -> None:
        text = "\n".join(self.paragraph)
        self.paragraph = []
        if self.in_item:
            self.html.append(f"{text}</dd>")
            self.in_item = False
        elif text:
            self.html.append(f"<p>{text}</p>")

    def end_list(self) -> None:
        self.end_paragraph()
        if self.in_list:
            self.html.append("</dl>")
            self.in_list = False

    def inline(self, line: str) -> str:
        """Fonts and links of a line."""
        text = escape(line.replace(r"\&", ""), quote=False)
        text = FONT.sub(self.font, text)
        text = characters(text.replace(r"\fR", "").replace(r"\fP", ""))
        if not self.in_example:
            text = FLAG.sub(r'<span class="flag">\g<0></span>', text)
        return REFERENCE.sub(self.link, text)

    def font(self, match: re.Match[str]) -> str:
        tag = TAGS.get(match[1])
        if tag is None or not match[2]:
            return match[2]
        return f"<{tag}>{match[2]}</{tag}>"

    def link(self, match: re.Match[str]) -> str:
        file = self.files.get(match[1] or match[2])
        if file is None:
            return match[0]
        return f'<a href="{file}">{match[0]}</a>'


def document(title: str, description: str, body: str) -> str:
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f'<meta name="description" content="{escape(description)}">',
        f"<style>{STYLE}</style>",
    ]
    navigation = ""
    if title != "sentkit":
        navigation = '<nav><a href="index.html">sentkit: all pages</a></nav>\n'
    heading = f"<h1>{escape(title)}</h1>"
    lines = ["<!DOCTYPE html>", '<html lang="en">', *head, navigation + heading, body, "</html>"]
    return "\n".join(lines) + "\n"


def index(man_pages: list[ManPage]) -> str:
    """The first page: the purpose and the pipes of the README, and a list of all pages."""
    readme = (ROOT / "README.md").read_text()
    purpose = readme.split("\n\n")[1]
    pipes = re.findall(r"```sh\n(.*?)```", readme.partition("## Three pipes")[2], re.DOTALL)[:2]
    body = [f"<p>{inline_code(purpose)}</p>"]
    body += [f"<pre>{escape(pipe.rstrip(), quote=False)}</pre>" for pipe in pipes]

    # The commands in the groups of `sentkit -h`, then the pages about formats and classes.
    of_name = {page.name: page for page in man_pages}
    remaining = dict(of_name)
    for group, commands in COMMANDS.items():
        rows = []
        for command in commands:
            for page in man_pages:
                if re.fullmatch(rf"sentkit-{command}(-[a-z]+)?", page.name) and page.section == "1":
                    rows.append(row_of(page))
                    remaining.pop(page.name, None)
        body.append(f"<h2>{group}</h2>\n<table>\n{''.join(rows)}</table>")
    rows = [row_of(page) for page in remaining.values()]
    body.append(f"<h2>Everything else</h2>\n<table>\n{''.join(rows)}</table>")
    body.append(f"<p>Version {__version__}.</p>")
    return document("sentkit", re.sub(r"[`\n]", " ", purpose), "\n".join(body))


def row_of(page: ManPage) -> str:
    link = f'<a href="{page.file}">{page.name}</a>'
    return f"<tr><td>{link}</td><td>{escape(page.summary)}</td></tr>\n"


def inline_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


if __name__ == "__main__":
    main()
