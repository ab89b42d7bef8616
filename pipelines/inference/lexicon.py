"""Words in names of columns, in lower case, as the parts of names such as ``click_bool``."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A label's name consists of these,
LABEL_WORDS = _words(
    "click clicked clicks clk label target conversion converted convert cvr install installed purchase purchased "
    "bought buy booking booked book order ordered like liked response outcome y action reward engaged skip"
)
# and of these.
LABEL_HELPERS = _words("is was has did bool flag binary indicator of the user ad")
# With words of a label, a number of clicks; with those of impressions, how many of these a row stands for.
COUNT_WORDS = _words("num number n nr no count counts cnt total sum daily per")
# Pairs of values, the second of which is positive.
NO_AND_YES = (
    *(("no", "yes"), ("n", "y"), ("f", "t"), ("neg", "pos"), ("negative", "positive")),
    *(("notclicked", "clicked"), ("none", "click")),
)
# Names of a number of impressions, and weaker ones.
IMPRESSION_WORDS = _words("impression impressions impr imprs imps")
EXPOSURE_WORDS = IMPRESSION_WORDS | _words(
    "imp exposure exposures display displays show shows view views pv pageviews"
)
# A number whose name has one of these makes a label by a threshold.
RATING_WORDS = _words("rating ratings stars score grade relevance")
# With ``id`` at the end, the name of a query.
QUERY_WORDS = _words("query search srch session request req qid impression auction pageview page slate visit")
# Whole names of queries.
QUERY_NAMES = _words(
    "query qid query_id session session_id sid request request_id req_id rid search search_id srch_id impression_id "
    "impr_id auction_id pageview_id page_view_id pvid slate_id list_id visit_id trace_id"
)
# Whole names of what identifies a row.
EXAMPLE_NAMES = _words(
    "id example_id event_id row_id impression_id imp_id uuid guid record_id log_id ad_impression_id"
)
# Whole names of importance weights; ``weight`` alone may be that of a parcel.
WEIGHT_NAMES = _words(
    "sample_weight example_weight importance_weight train_weight row_weight instance_weight importance"
)
# Of these a query may last hours.
SESSION_WORDS = _words("session sessions sid visit visits")
# Names of a list of all that was shown on a page.
SHOWN_WORDS = _words("inview impressions shown displayed viewed candidates slate exposed exposures items")
# Names of who sees the impressions.
USER_WORDS = _words("user uid visitor member customer cookie device viewer")
# Whole names of the time of a row, parts of names that may be it, and parts that may be it where nothing better is.
TIME_NAMES = _words(
    "timestamp time ts datetime date_time event_time event_timestamp impression_time impression_timestamp "
    "request_time request_timestamp log_time server_time shown_at view_time unix_time unixtime time_stamp time_us "
    "time_ms"
)
TIME_WORDS = _words("time timestamp ts datetime")
WEAK_TIME_WORDS = _words("date hour day dt epoch created at when utc ms")
# With a time, that of something else than the impression, such as of its outcome.
OTHER_EVENT_WORDS = _words(
    "click clicked install installed conversion convert converted attribution attributed purchase purchased order "
    "ordered booking booked signup register registered checkin checkout check expire expiry expires end ends "
    "ended start started begin begins last first update updated modified due arrival departure return returned "
    "pickup dwell watch spent session status outcome label target result response respond responded reply closed "
    "close completed complete completion finish finished resolved payment paid shipped shipping delivery "
    "delivered cancel canceled cancelled cancellation refund refunded churn churned default settled decision "
    "decided reviewed approved uninstall opened left exit"
)
# With a time, one that belongs to a thing or a person, and to no row.
ATTRIBUTE_WORDS = _words(
    "birth born birthday dob release released publish published publication founded joined"
)
# With a word of time, a duration or a part of a date; such a name promises no time.
TIME_PART_WORDS = _words(
    "year month day hour minute second hours minutes seconds days week weekday quarter zone timezone of slot "
    "bucket bin block band type kind flag is has id diff delta since ago remaining elapsed spent duration length "
    "lag latency delay dwell watch stay play load wait waiting lead prep count cnt num avg mean median max min "
    "total sum per ratio rate to"
)
# Names of a place on the page.
PLACE_WORDS = _words("position pos slot rank placement")
# Whole numbers whose names have one of these are ids.
ID_WORDS = _words(
    "id ids uid gid pid code codes zip zipcode postcode type kind category cat class hash token key ip version sku "
    "isbn domain campaign creative advertiser publisher brand model os browser region city country state language "
    "flight agent area company employer station terminal route carrier airline store shop zone district county ward "
    "tract dma msa fips department section segment cluster seller merchant vendor supplier driver author artist branch "
    "postal plz asn isp"
)
# Numbers whose names have one of these are quantities.
NUMBER_WORDS = _words(
    "price amount count cnt num number qty quantity age length duration size score rating days hours minutes seconds "
    "rate ratio pct percent avg mean sum total bid cost budget usd eur weight height width year distance views clicks "
    "revenue income balance depth delay elapsed freq frequency sqft sqm m2 living surface pages lead wait adults "
    "population employees visits stops"
)
# What people do after an impression; with two values, a column named so is an outcome,
DEED_WORDS = _words(
    "click clicked clicks skip skipped unsubscribe unsubscribed follow share comment commented like liked dislike hate "
    "dwell dwelled play played watch watched listen listened finish finished complete completed completion convert "
    "converted conversion purchase purchased buy bought bounce bounced forward forwarded enter entered reply replied "
    "favorite favorited favourite favourited collect collected retweet retweeted upvote upvoted downvote downvoted "
    "checkout opened install installed download downloaded refund refunded ordered booked engaged disliked"
)
# and these mean other things as well, so that the rows must agree.
OUTCOME_WORDS = _words(
    "open order orders stay stayed view viewed viewing read reading revenue payment paid tip tips tipped save "
    "saved shared followed report reported subscribe subscribed cart basket return returned booking book reaction "
    "attribution vote voted engagement spend spent profit gmv commission delivered swipe expand close closed hide "
    "hidden visit visited reason signup register registered"
)
# What stands beside these words in the name of an outcome.
OUTCOME_HELPERS = LABEL_HELPERS | _words(
    "not no to on in add added profile page post video author avatar email mail message item long short valid value "
    "amount usd eur after end"
)
# How long, or which part of it.
SPAN_WORDS = _words(
    "time times ms s sec secs second seconds minutes duration ratio pct percent percentage progress length"
)
# With a word of ``SPAN_WORDS``, how long somebody stayed: known at the end of it.
SPENT_WORDS = _words("dwell dwelled play played watch watched listen listened completion")
# With a word of ``DEED_WORDS`` before them, when it was done.
TIME_ENDINGS = _words("at ts timestamp date datetime")
# Of numbers with fractions, too, those named so are no quantities: after 10.9 comes 10.10.
VERSION_WORDS = _words("version versions ver release build firmware")
# With ``number`` behind them, names of single ones, such as a flight's.
NUMBERED_WORDS = ID_WORDS | _words(
    "phone room house tail train gate bus ticket part serial license licence policy order invoice building apartment "
    "seat lane channel block lot plate account card customer case batch unit table desk"
)
# Two of them in a first line that comes again say that it names the columns.
KNOWN_WORDS = LABEL_WORDS | USER_WORDS | PLACE_WORDS | ID_WORDS | TIME_NAMES | QUERY_NAMES | EXAMPLE_NAMES
KNOWN_WORDS |= _words("ad item product banner article")
