"""The hash behind views: the same as written out plainly, in range, different by purpose."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distillmatch.views.draws import Draw, random_words, whole

WORD = 1 << 64


def slow_word(key: int, position: int, draw: int) -> int:
    """The same hash with Python's unbounded integers."""

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
        return word ^ (word >> 31)

    step = 0x9E3779B97F4A7C15
    image = mix((mix(position * step % WORD) + key) % WORD)
    word = mix((image + (draw + 1) * step) % WORD)
    return word - WORD if word >= WORD // 2 else word


@settings(max_examples=50, deadline=None)
@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4),
    st.sampled_from(list(Draw)),
)
def test_words_are_those_of_the_written_out_hash(key: int, places: list[int], draw: Draw) -> None:
    found = random_words(key, torch.tensor(places), draw)[0].tolist()
    assert found == [slow_word(key, place, draw) for place in places]


@given(st.integers(1, 500))
def test_whole_numbers_stay_in_range_even_for_extreme_words(count: int) -> None:
    extreme = torch.tensor([0, -1, 1, (1 << 63) - 1, -(1 << 63)])
    drawn = whole(extreme, count)
    assert drawn.tolist()[0] == 0
    assert drawn.tolist()[1] == count - 1
    assert int(drawn.min()) >= 0 and int(drawn.max()) < count
