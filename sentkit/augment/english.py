"""Lists of English words that replace a parser in the rules of negation."""


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


AUXILIARIES = listed("""
    am is are was were do does did have has had can could may might must shall should will would ought
""")
NAMES_TOO = listed("may will")  # with a capital usually names (May, Will), except in a question
ASKED = listed("i you he she it we they this that these those there the a an my your his her our their")
CONTRACTED = ("'m", "'re", "'ll", "'ve", "'d")
WITH_IS = listed("""
    he's she's it's that's this's there's here's what's who's where's how's let's
""")  # after other words, 's is often a genitive
WITH_NOT = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
CUT = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}  # from "ca n't", the spelling of treebanks

# These words are capitalised only at the beginning of a sentence.
SMALL = listed("""
    a an the this that these those some any all each every no another both many most several few
    he she it we you they my your his her its our their there here one two three
    in on at by for from of to with after before during since until when while as if because
    although though and but or so then now
""")
