"""The rules of ``ctr.training.ids.id_map`` in plain Python: dicts and sorted lists, one id after the other."""

from dataclasses import dataclass

MASK = 2**64 - 1
Id = tuple[int, int]


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _unshift(value: int, bits: int) -> int:
    found = value
    for _ in range(64 // bits + 1):
        found = value ^ (found >> bits)
    return found


def inverse_splitmix64(value: int) -> int:
    value = (_unshift(value, 31) * pow(0x94D049BB133111EB, -1, 2**64)) & MASK
    value = (_unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64)) & MASK
    return (_unshift(value, 30) - 0x9E3779B97F4A7C15) & MASK


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def fingerprint_of(feature: int, mixed: int) -> int:
    """The fingerprint that, with a feature, has some hash: so that tests can have hashes collide."""
    return signed(inverse_splitmix64(mixed) ^ splitmix64(feature))


@dataclass
class Slot:
    slot: int
    first: int
    last: int
    uses: int
    frequency: float


class SlowSketch:
    """Dicts of counters by position, of which there are 4 for each id."""

    def __init__(self, ids: int, max_count: int) -> None:
        self.ids, self.max_count, self.total = ids, max_count, 0
        self.bits = (8 * ids - 1).bit_length()
        self.rows: list[dict[int, int]] = [{} for _ in range(4)]

    def at(self, one: Id) -> list[tuple[dict[int, int], int]]:
        mixed = splitmix64((one[1] & MASK) ^ splitmix64(one[0]))
        return [
            (row, splitmix64(mixed ^ splitmix64(number)) >> (64 - self.bits))
            for number, row in enumerate(self.rows)
        ]

    def estimate(self, one: Id) -> int:
        return min(row.get(position, 0) for row, position in self.at(one))

    def raise_to(self, counts: dict[Id, int]) -> None:
        for one, count in counts.items():
            for row, position in self.at(one):
                row[position] = max(row.get(position, 0), count)
        self.total += sum(counts.values())
        while self.total > self.ids * max(2, self.max_count / 4):
            self.total //= 2
            self.rows = [{position: count // 2 for position, count in row.items()} for row in self.rows]


class SlowIdMap:
    """Arguments and results as those of ``IdMap``, with lists for arrays.

    Frequencies decay from occurrence to occurrence, by definition. Where all times are multiples of the half-life,
    every factor is a power of two, so that they agree with the map's own ones bit by bit.
    """

    def __init__(self, features, first_slot, admission, eviction):
        self.features, self.first_slot = features, first_slot
        self.admission, self.eviction = admission, eviction
        self.slots: dict[Id, Slot] = {}
        self.free: list[int] = []
        self.used = 0
        self.waiting: dict[Id, int] = {}
        self.sketch = SlowSketch(admission.exact_ids, admission.count)
        self.time = None
        self.interval = None
        names = ("admitted", "evicted", "refused", "shared", "occurrences")
        self.totals = [dict.fromkeys(names, 0) for _ in features]

    @property
    def rows(self):
        return self.first_slot + self.used

    def look_up(self, ids):
        return [self.row(one) for one in ids]

    def row(self, one):
        if one in self.slots:
            return self.first_slot + self.slots[one].slot
        feature = self.features[one[0]]
        return feature.shared_row + splitmix64(one[1] & MASK) % feature.shared_rows

    def half_lives(self, time):
        return (self.time - time) / round(self.eviction.half_life * 1e6)

    def frequency(self, one):
        slot = self.slots[one]
        return slot.frequency * 2.0 ** -self.half_lives(slot.last)

    def learn(self, ids, counts, time, admit):
        self.time = time if self.time is None else max(self.time, time)
        for one, count in zip(ids, counts, strict=True):
            self.totals[one[0]]["occurrences"] += count
            if one in self.slots:
                slot = self.slots[one]
                slot.frequency = self.frequency(one) + count
                slot.last, slot.uses = self.time, slot.uses + count
        self.evict_idle()
        new = [number for number, one in enumerate(ids) if one not in self.slots]
        eligible = self.let_in(ids, counts, admit, new)
        for feature in range(len(self.features)):
            self.make_room(feature, ids, eligible)
        fresh = []
        for number in eligible:
            feature = ids[number][0]
            if self.occupancy(feature) < self.features[feature].capacity:
                self.occupy(ids[number], self.time, self.time, counts[number], float(counts[number]))
                self.waiting.pop(ids[number], None)
                self.totals[feature]["admitted"] += 1
                fresh.append(number)
            else:
                self.totals[feature]["refused"] += counts[number]
        for number in new:
            if number not in fresh:
                self.totals[ids[number][0]]["shared"] += counts[number]
        return self.look_up(ids), fresh

    def let_in(self, ids, counts, admit, new):
        if self.admission.rule == "always":
            return new
        if self.admission.rule == "probability":
            return [number for number in new if admit[number]]
        if (
            len(self.waiting) + sum(ids[number] not in self.waiting for number in new)
            > self.admission.exact_ids
        ):
            self.sketch.raise_to(self.waiting)
            self.waiting = {}
        for number in new:
            one = ids[number]
            before = self.waiting[one] if one in self.waiting else self.sketch.estimate(one)
            self.waiting[one] = min(before + counts[number], self.admission.count)
        return [number for number in new if self.waiting[ids[number]] == self.admission.count]

    def occupancy(self, feature):
        return sum(one[0] == feature for one in self.slots)

    def evict(self, one):
        self.totals[one[0]]["evicted"] += 1
        self.free = sorted([*self.free, self.slots.pop(one).slot])

    def evict_idle(self):
        if self.eviction.max_idle is None:
            return
        interval = self.time // round(self.eviction.every * 1e6)
        if interval != self.interval:
            self.interval = interval
            for one, slot in list(self.slots.items()):
                if self.time - slot.last > round(self.eviction.max_idle * 1e6):
                    self.evict(one)

    def rank(self, one):
        slot = self.slots[one]
        if self.eviction.policy == "least_frequent":
            return self.frequency(one), slot.slot
        if self.eviction.policy == "score":
            idle = self.time - slot.last
            return self.frequency(one) / (idle + round(self.eviction.half_life * 1e6) / 100), slot.slot
        return slot.last, slot.slot

    def make_room(self, feature, ids, eligible):
        needed = sum(ids[number][0] == feature for number in eligible)
        room = self.features[feature].capacity - self.occupancy(feature)
        if needed <= room or self.eviction.policy == "none":
            return
        count = max(int(self.eviction.share * self.features[feature].capacity), needed - room)
        may_go = [one for one in self.slots if one[0] == feature and one not in ids]
        for one in sorted(may_go, key=self.rank)[:count]:
            self.evict(one)

    def occupy(self, one, first, last, uses, frequency):
        if self.free:
            place = self.free.pop(0)
        else:
            place, self.used = self.used, self.used + 1
        self.slots[one] = Slot(place, first, last, uses, frequency)
        return self.first_slot + place
