from PIL import Image

from longfire.report.stamp import digest, stamp, stamp_of


def test_a_picture_says_of_what_it_is(tmp_path):
    picture = tmp_path / "red.png"
    Image.new("RGB", (3, 2), "red").save(picture)
    assert stamp_of(picture) is None
    stamp(picture, {"rows": [1, 2], "setting": "é"})
    assert stamp_of(picture) == digest({"setting": "é", "rows": [1, 2]})
    assert stamp_of(picture) != digest({"setting": "é", "rows": [2, 1]})
    with Image.open(picture) as image:
        assert image.getpixel((2, 1)) == (255, 0, 0)
