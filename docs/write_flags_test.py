"""docs/flags.md says what the programs say."""

from docs import write_flags


def test_the_page_of_flags_is_what_the_programs_define():
    written = write_flags.PAGE.read_text(encoding="utf-8")
    assert written == write_flags.page(), "write it anew: python -m docs.write_flags"


def test_every_program_has_its_flags_on_the_page():
    documented = {program for programs in write_flags.SECTIONS.values() for program in programs}
    folders = ("inception", "inception/data", "slim")
    files = [f for folder in folders for f in (write_flags.REPO / folder).glob("*.py")]
    starts = "app.run(", "programs.train", "programs.evaluate"
    programs = {
        ".".join(file.relative_to(write_flags.REPO).with_suffix("").parts)
        for file in files
        if '__name__ == "__main__"' in (text := file.read_text()) and any(s in text for s in starts)
    }
    assert documented == programs
