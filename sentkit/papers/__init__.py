"""Takes the name of a paper and returns its methods, settings and figures; one folder for each
paper.

`paper.py` has name, citation, settings and presets, without torch; `method.py` the method and its
own losses; `published.jsonl` the figures of the paper, which `published.py` reads. Code that exists
only because of one paper is in its folder.
"""

from sentkit.papers.consert.paper import PAPER as CONSERT
from sentkit.papers.defsent.paper import PAPER as DEFSENT
from sentkit.papers.pairsupcon.paper import PAPER as PAIRSUPCON
from sentkit.papers.sg_bert.paper import PAPER as SG_BERT

PAPERS = {paper.key: paper for paper in (SG_BERT, CONSERT, PAIRSUPCON, DEFSENT)}
