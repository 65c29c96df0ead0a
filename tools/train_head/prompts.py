"""What the target is asked: seed prompts by subject, and openers after which it asks itself.

The prompts are written for this project; none is taken from a data set, and `Exclusion` drops any
that comes near a prompt kept for measuring, whoever wrote it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

TOPICS = """
photosynthesis; black holes; the water cycle; plate tectonics; vaccines; the human heart; DNA;
evolution; gravity; electricity; magnetism; sound waves; the periodic table; acids and bases;
volcanoes; earthquakes; hurricanes; glaciers; coral reefs; rainforests; deserts; bees; whales;
wolves; dogs; cats; horses; octopuses; dinosaurs; mushrooms; trees; soil; honey; bread; coffee;
tea; chocolate; cheese; rice; pasta; soup; salads; spices; gardening; composting; recycling;
solar power; wind energy; nuclear power; batteries; electric cars; bicycles; trains; aeroplanes;
ships; bridges; skyscrapers; lighthouses; castles; ancient Rome; ancient Egypt; the Silk Road;
the Renaissance; the French Revolution; the Industrial Revolution; the printing press; the moon
landing; the Great Wall of China; the Roman aqueducts; the Olympic Games; football; chess; tennis;
swimming; hiking; yoga; running a marathon; meditation; sleep; stress; friendship; leadership;
teamwork; time management; public speaking; job interviews; remote work; small businesses;
marketing; saving money; taxes; inflation; supply and demand; trade; democracy; human rights;
immigration; education; libraries; museums; jazz; classical music; guitars; pianos; painting;
sculpture; photography; cinema; theatre; poetry; novels; science fiction; fairy tales; mythology;
dragons; ghosts; pirates; robots; artificial intelligence; machine learning; neural networks;
databases; operating systems; computer networks; encryption; passwords; web browsers; smartphones;
video games; virtual reality; 3D printing; satellites; telescopes; Mars; Saturn; comets; stars;
time travel; probability; prime numbers; fractions; triangles; calculus; statistics; algebra;
philosophy; ethics; happiness; language learning; translation; handwriting; dreams; memory; colours
"""
FORMS = """
Explain {t} to a ten-year-old.|What is {t}, and why does it matter?|Write a short story about {t}.
Write a poem about {t}.|List five interesting facts about {t}.|Give me a summary of {t}.
What are the advantages and disadvantages of {t}?|Write an essay about {t} in three paragraphs.
Describe {t} in detail.|What are common misconceptions about {t}?|How has {t} changed over time?
Write a dialogue between two people who disagree about {t}.|Make a quiz with answers on {t}.
Draft an email to a colleague about {t}.|Plan a one-hour lesson on {t}.|Tell me a joke about {t}.
What would the world be like without {t}?|You are an expert on {t}. Answer a beginner's question.
Write a product description for something related to {t}.|Compare {t} with something similar.
Write step-by-step instructions for someone who is new to {t}.|What are the key ideas behind {t}?
Write a news article about {t}.|Write a letter to the editor about {t}.|Define {t} in one sentence.
Make a table with three columns about {t}.|Return a JSON object that describes {t}.
Write a blog introduction about {t}.|What questions should I ask about {t}?|Invent a myth on {t}.
Pretend you are a tour guide and introduce {t}.|What is the history of {t}?|Debate {t} with me.
Suggest three books or films about {t} and say why.|How can I learn more about {t}?
""".replace("\n", "|")
TASKS = """
reverses a string; counts the vowels in a text; checks whether a number is prime; sorts a list of
numbers; merges two sorted lists; finds the largest number in a list; computes a factorial; prints
the Fibonacci numbers; removes duplicates from a list; counts words in a file; reads a CSV file;
parses a date; validates an email address; converts Celsius to Fahrenheit; checks for a
palindrome; implements a stack; implements a queue; implements binary search; finds the shortest
path in a graph; computes an average; generates a random password; rolls two dice; plays
tic-tac-toe; downloads a web page; sums the digits of a number; transposes a matrix; multiplies
two matrices; finds common elements of two arrays; counts characters; groups words by length;
flattens a list; implements a linked list; traverses a binary tree; computes the greatest common
divisor; draws a triangle of stars; converts a number to binary; formats a table; caches results;
retries a request
"""
CODE_FORMS = """
Write a Python function that {t}.|Write a JavaScript function that {t}.|Write a C++ program that
{t}.|How would you write code that {t}? Explain each step.|Write a Java method that {t}.|Write a
test for a function that {t}.|Write a shell script that {t}.|Write pseudocode for a program that
{t}.
""".replace("\n", " ")
NAMES = "Anna Ben Carla David Elena Farid Grace Hiro Ines Jonas Kofi Lena Maria Nikhil Olga Pedro"
THINGS = "apples books candles coins eggs flowers marbles pencils shells stamps tickets toys"
SUMS = """
{n} has {a} {x} and buys {b} more. How many {x} does {n} have now?|{n} shares {c} {x} equally among
{b} friends. How many does each get, and how many are left?|A box holds {a} {x}. How many {x} are in
{b} boxes?|{n} had {c} {x} and gave away {a}. What fraction is left?|What is {a} times {b} plus {c}?
|{x} cost {a} dollars each. {n} pays {c} dollars for some {x}. How many did {n} buy?|{n} walks {a}
km in {b} hours. What is the average speed?|Solve for x: {a}x + {b} = {c}.|What is {b}% of {c}?
""".replace("\n", " ")
OPENERS = """
What|How|Why|Write|Explain|Can you|I need|Describe|Give me|Create|Imagine|Compare|Summarize|Write a
Python|Suppose|Act as|You are|Is it|Which|Help me|Tell me|Design|Calculate|Find|List|Translate|Edit
|Discuss|Rewrite|Classify|Identify|Suggest|Draft|Read the following|Given|Please|I am|My|Let's|In
""".replace("\n", " ")
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True)
class Job:
    """One training sequence to generate: ``text`` is forced, the rest is the target's own.

    With ``invent`` the text ends inside a user turn and the target finishes that turn first (at
    ``user_temperature``). The answer is sampled at ``temperature`` (0 is greedy). With
    ``past_end`` it goes on beyond the end-of-turn token, as a server told to ignore it does.
    """

    text: str
    invent: bool
    temperature: float
    user_temperature: float
    past_end: bool


def split(block: str, separator: str) -> list[str]:
    """Return the non-empty items of ``block``, white space normalised."""
    return [" ".join(item.split()) for item in block.split(separator) if item.strip()]


def seed_prompts(rng: random.Random, sums: int = 6000) -> list[str]:
    """Return every subject in every form, and ``sums`` arithmetic problems, shuffled."""
    pairs: Iterable[tuple[str, str]] = [
        *product(split(FORMS, "|"), split(TOPICS, ";")),
        *product(split(CODE_FORMS, "|"), split(TASKS, ";")),
    ]
    prompts = [form.format(t=topic) for form, topic in pairs]
    for _ in range(sums):
        numbers = {key: rng.randint(2, 99) for key in "abc"}
        words = {"n": rng.choice(NAMES.split()), "x": rng.choice(THINGS.split())}
        prompts.append(rng.choice(split(SUMS, "|")).format(**numbers, **words))
    rng.shuffle(prompts)
    return prompts


def jobs(seed: int, exclusion: Exclusion) -> Iterator[Job]:
    """Yield jobs without end, the same for the same seed.

    About a fifth take a seed prompt while there are any, the others are invented by the target.
    Three quarters of the answers are greedy, since speculation is judged greedily; the others
    are sampled at 0.7 to 1 for variety.
    """
    rng = random.Random(seed)
    seeds = [prompt for prompt in seed_prompts(rng) if not exclusion.covers(prompt)]
    openers = split(OPENERS, "|")
    head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    while True:
        temperature = 0.0 if rng.random() < 0.75 else rng.uniform(0.7, 1.0)
        invent = not seeds or rng.random() < 0.8
        if invent:
            text = head + (rng.choice(openers) if rng.random() < 0.75 else "")
        else:
            text = f"{head}{seeds.pop()}<|im_end|>\n<|im_start|>assistant\n"
        yield Job(text, invent, temperature, rng.uniform(0.7, 1.0), rng.random() < 0.1)


class Exclusion:
    """Prompts kept out of the training set, in whole and in part.

    ``covers`` is true for a text that shares a run of eight words with a kept-out prompt, or is
    one of them.
    """

    RUN = 8

    def __init__(self, prompts: Iterable[str]) -> None:
        words = [self._words(prompt) for prompt in prompts]
        self._whole = {tuple(w) for w in words}
        self._runs = {run for w in words for run in self._windows(w)}

    @classmethod
    def load(cls, path: Path) -> Exclusion:
        """Keep out every turn of a JSON-lines file of prompts."""
        return cls(turn for row in read_prompts(path) for turn in row["turns"])

    def covers(self, text: str) -> bool:
        """Tell whether ``text`` is, or shares a long run with, a kept-out prompt."""
        words = self._words(text)
        return tuple(words) in self._whole or any(r in self._runs for r in self._windows(words))

    @staticmethod
    def _words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    @classmethod
    def _windows(cls, words: list[str]) -> Iterator[tuple[str, ...]]:
        return (tuple(words[i : i + cls.RUN]) for i in range(len(words) - cls.RUN + 1))


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file whose rows have ``turns``."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
