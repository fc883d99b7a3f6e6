"""The operations in plain loops, by their notes."""


def deleted(words, note):
    gone = {start + place for start in note["at"] for place in range(note.get("length", 1))}
    left = []
    for place, word in enumerate(words):
        if place not in gone:
            left.append(word)
        elif "mark" in note and (place in note["at"] if "length" in note else place - 1 not in gone):
            left.append(note["mark"])
    return left


def replaced(words, note):
    for place, new in zip(note["at"], note["words"], strict=True):
        words[place] = new + words[place][len(words[place].rstrip(",.")) :]
    return words


def moved(words, note):
    pairs = note["at"] if note["op"] == "reorder" else [(place, place + 1) for place in note["at"]]
    for a, b in pairs:
        for place in range(note.get("length", 1)):
            words[a + place], words[b + place] = words[b + place], words[a + place]
    return words


def doubled(words, note):
    return [f"{word} {word}" if place in note["at"] else word for place, word in enumerate(words)]


PLAIN = {"span-delete": deleted, "delete": deleted, "repeat": doubled, "synonym": replaced}


def redone(text, note):
    return " ".join(PLAIN.get(note["op"], moved)(text.split(), note)) if note["at"] else text
