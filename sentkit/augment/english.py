"""Lists of English words: what a parser would know of them, as far as it can be known without one."""


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


AUXILIARIES = listed("""
    am is are was were do does did have has had can could may might must shall should will would ought
""")
NAMES_TOO = listed("may will")  # with a capital rather a month and a man, but in a question
ASKED = listed("i you he she it we they this that these those there the a an my your his her our their")
CONTRACTED = ("'m", "'re", "'ll", "'ve", "'d")
WITH_IS = listed("""
    he's she's it's that's this's there's here's what's who's where's how's let's
""")  # of other words 's is as likely a genitive
WITH_NOT = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
CUT = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}  # of "ca n't", as treebanks write it

# Their capital is that of the beginning of a sentence, and of nothing else.
SMALL = listed("""
    a an the this that these those some any all each every no another both many most several few
    he she it we you they my your his her its our their there here one two three
    in on at by for from of to with after before during since until when while as if because
    although though and but or so then now
""")
