"""Small data for the examples of this folder: `python examples/smollm2/chats.py` writes it into the current folder.

Conversations that recall a fact, pairs that prefer brief answers, the same answers marked good or bad, and dialogues
that call the calculator; each with rows held out, of other names, countries or numbers. The configs also name
functions of this file: two rewards and the solution of a sum.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PEOPLE = ("Ada", "Ben", "Chloe", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
ANIMALS = ("parrot", "dog", "cat", "horse", "rabbit", "turtle")
PETS = ("Kiwi", "Rex", "Luna", "Bolt", "Nala", "Pepper", "Coco", "Max", "Ruby", "Shadow", "Bella", "Oscar")
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Portugal": "Lisbon",
    "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Hungary": "Budapest",
    "Belgium": "Brussels", "Iceland": "Reykjavik", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "Egypt": "Cairo", "Kenya": "Nairobi", "Morocco": "Rabat",
    "Ghana": "Accra", "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Argentina": "Buenos Aires", "Russia": "Moscow", "Turkey": "Ankara",
    "Iran": "Tehran", "Iraq": "Baghdad", "Jordan": "Amman", "Nepal": "Kathmandu", "Philippines": "Manila",
    "Ukraine": "Kyiv", "Romania": "Bucharest",
}  # fmt: skip
LONG = (
    "The capital of {country} is {capital}, a city with a long history that is well worth a visit at any time of year.",
    "{capital} is the capital of {country}. It is known for its streets, its markets and the people who live there.",
    "That is a good question! There are many cities in {country}, and the one that you ask for is called {capital}.",
)
Row = dict[str, Any]


def message(role: str, content: str) -> dict[str, str]:
    """Write one turn of a chat."""
    return {"role": role, "content": content}


def fact_row(chance: random.Random, people: Sequence[str], pets: Sequence[str]) -> Row:
    """Write a conversation whose second answer is in its first turn, as a prompt of three turns and its answer."""
    person, animal, pet = chance.choice(people), chance.choice(ANIMALS), chance.choice(pets)
    told = message("user", f"Hi, I am {person}, and my {animal} is called {pet}.")
    question, answer = chance.choice([("What is my name?", person), (f"What is my {animal} called?", pet)])
    heard = message("assistant", f"Nice to meet you, {person}!")
    return {"prompt": [told, heard, message("user", question)], "answer": answer}


def fact_rows(count: int, chance: random.Random, people: Sequence[str], pets: Sequence[str]) -> list[Row]:
    """Write `count` such conversations, no two alike."""
    rows: dict[str, Row] = {}
    while len(rows) < count:
        row = fact_row(chance, people, pets)
        rows[json.dumps(row)] = row
    return list(rows.values())


def as_conversation(row: Row) -> Row:
    """Put the answer behind its prompt: every turn of the assistant is learnt."""
    return {"messages": [*row["prompt"], message("assistant", row["answer"])]}


def pair_row(country: str, chance: random.Random) -> Row:
    """Prefer the capital alone to a sentence around it."""
    capital = CAPITALS[country]
    long = chance.choice(LONG).format(country=country, capital=capital)
    return {
        "prompt": [message("user", f"What is the capital of {country}?")],
        "chosen": [message("assistant", f"{capital}.")],
        "rejected": [message("assistant", long)],
    }


def as_marked(pair: Row) -> list[Row]:
    """Mark the answers of a pair good and bad, each a row of its own."""
    sides = [("chosen", True), ("rejected", False)]
    return [{"prompt": pair["prompt"], "completion": pair[side], "label": good} for side, good in sides]


def product_row(chance: random.Random) -> Row:
    """Ask for a product that no small model knows."""
    left, right = chance.randrange(101, 1000), chance.randrange(11, 100)
    return {"prompt": f"What is {left} * {right}?", "answer": str(left * right), "expression": f"{left} * {right}"}


def as_dialogue(row: Row) -> Row:
    """Answer a product by a call of the calculator."""
    called = {"name": "calculator", "arguments": {"expression": row["expression"]}}
    call: Row = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
    answer = row["answer"]
    result = {"role": "tool", "name": "calculator", "content": answer}
    return {"messages": [message("user", row["prompt"]), call, result, message("assistant", answer)]}


def number(answer: str) -> str:
    """Write the answer to a sum: the number alone."""
    return answer


def brief(completions: Sequence[str | list[dict[str, str]]], **_: object) -> list[float]:
    """Score answers: 1 for one of at most five words, else 0."""
    return at_most(5, completions)


def sentence(completions: Sequence[str | list[dict[str, str]]], **_: object) -> list[float]:
    """Score answers: 1 for one of at most six words, as "The capital of France is Paris." has, else 0."""
    return at_most(6, completions)


def at_most(words: int, completions: Sequence[str | list[dict[str, str]]]) -> list[float]:
    """Score answers: 1 for one of at most so many words, and at least one, else 0."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(0 < len(text.split()) <= words) for text in texts]


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(folder: Path = Path()) -> None:
    """Write all files."""
    chance = random.Random(7)
    write(folder / "facts.jsonl", [as_conversation(row) for row in fact_rows(96, chance, PEOPLE[:8], PETS[:8])])
    write(folder / "facts_held_out.jsonl", fact_rows(40, chance, PEOPLE[8:], PETS[8:]))
    countries = list(CAPITALS)
    chance.shuffle(countries)
    pairs = [pair_row(country, chance) for country in countries]
    write(folder / "pairs.jsonl", pairs[:28])
    write(folder / "pairs_held_out.jsonl", pairs[28:])
    write(folder / "marked.jsonl", [row for pair in pairs[:28] for row in as_marked(pair)])
    write(folder / "capitals.jsonl", [{"prompt": row["prompt"]} for row in pairs[:28]])
    write(folder / "capitals_held_out.jsonl", [{"prompt": row["prompt"]} for row in pairs[28:]])
    write(folder / "capitals_often.jsonl", [{"prompt": row["prompt"]} for row in pairs[28:] for _ in range(8)])
    products = [product_row(chance) for _ in range(48 + 400 + 40)]
    write(folder / "calls.jsonl", [as_dialogue(row) for row in products[:48]])
    write(folder / "products.jsonl", products[48:448])
    write(folder / "products_held_out.jsonl", products[448:])


if __name__ == "__main__":
    main()
