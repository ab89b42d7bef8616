from ctr.config import StrictModel


class Admission(StrictModel):
    def drawn(self, e):
        return None


class Eviction(StrictModel):
    pass


class IdsConfig(StrictModel):
    capacity: int = 2**22
    capacities: dict[str, int] = {}
    shared_rows: int = 8
    admission: Admission = Admission()
    eviction: Eviction = Eviction()
