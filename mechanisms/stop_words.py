"""English function words: the closed classes, which carry little of a text's topic."""

_WORDS = """
    a an the this that these those some any each every either neither no all both half such what which whose i
    me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her
    hers herself it its itself they them their theirs themselves who whom one oneself am is are was were be been
    being do does did doing done have has had having will would shall should can could may might must ought need
    of in on at by for with about against between into through during before after above below to from up down
    out off over under upon within without along across behind beyond near since until till toward towards among
    per via and but or nor so yet if because as while although though unless whereas whether than then not n't
    's 're 've 'll 'd 'm s t ll re ve d m again further once here there when where why how more most other few
    only own same too very just also now ever
"""

STOP_WORDS = frozenset(_WORDS.split())
