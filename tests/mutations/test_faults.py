"""The list of faults fits the code and the tests of today; ``make soak`` tries them."""

import re
from collections import Counter

from mutations import KINDS, ROOT, read_faults

FAULTS = read_faults()


def test_each_fault_changes_one_place_and_names_tests_that_exist():
    assert len(FAULTS) >= 40
    assert max(Counter(fault.fault for fault in FAULTS).values()) == 1
    for fault in FAULTS:
        assert fault.kind in KINDS, fault
        assert (ROOT / fault.file).read_text().count(fault.old) == 1, fault
        assert fault.new != fault.old, fault
        for test in fault.tests:
            file, *names = re.sub(r"\[.*", "", test).split("::")
            text = (ROOT / file).read_text()
            for name in names:
                assert re.search(rf"(def|class) {name}\b", text), (fault.fault, test)
