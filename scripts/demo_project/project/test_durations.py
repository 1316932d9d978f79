import unittest

from durations import parse


class ParseTest(unittest.TestCase):
    def test_one_part(self) -> None:
        self.assertEqual(parse("90s"), 90)
        self.assertEqual(parse("2d"), 172800)

    def test_two_parts(self) -> None:
        self.assertEqual(parse("1h30m"), 5400)

    def test_no_duration(self) -> None:
        for text in ("", "h", "90", "1h 30m", "1h30"):
            with self.assertRaises(ValueError):
                parse(text)
