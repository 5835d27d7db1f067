// SPDX-License-Identifier: Apache-2.0
// Sets of PUs and their text: lists, masks, and locations in a machine.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include <adamant/cores.hpp>

#include "catch.hpp"

using namespace adamant;

namespace {

using model = std::set<unsigned>;

index_set to_set(model const& of)
{
    index_set set;
    for (unsigned const i : of)
        set.insert(i);
    return set;
}
model to_model(index_set const& of)
{
    auto const members = of.members();
    return {members.begin(), members.end()};
}

// Small ones, at the edges of the words inside, anywhere.
unsigned some_index(test::random_bits& random)
{
    switch (random.below(4)) {
    case 0: return static_cast<unsigned>(random.below(8));
    case 1: return static_cast<unsigned>(64 * (1 + random.below(3)) + random.below(3) - 1);
    case 2: return static_cast<unsigned>(random.below(300));
    default:
        return static_cast<unsigned>(random.below(1000) == 0 ? index_set::max_index - random.below(2)
                                                             : random.below(40));
    }
}
model some_model(test::random_bits& random)
{
    model set;
    for (std::size_t n = random.below(12); n > 0; --n)
        set.insert(some_index(random));
    return set;
}

// Where an error points, counting from 1, as its words say and as its caret shows; 0 where there is none.
template <class Function>
std::size_t column(Function function, std::string* text = nullptr)
{
    try {
        function();
    } catch (invalid_argument const& error) {
        std::string const what = error.what();
        if (text != nullptr)
            *text = what;
        std::size_t const last = what.rfind('\n');
        std::size_t const before = what.rfind('\n', last - 1);
        std::string const caret = what.substr(last + 1);
        std::string const shown = what.substr(before + 1, last - before - 1);
        std::size_t const at = caret.size() - 2; // both lines are indented by two
        CHECK(caret == std::string(at + 1, ' ') + "^");
        CHECK(shown.substr(0, 2) == "  ");
        CHECK(at <= shown.size() - 2 + 1); // at most one past its end
        CHECK(what.find(", at character " + std::to_string(at) + "\n") != std::string::npos);
        return at;
    }
    return 0;
}

struct refusal {
    std::string text;
    std::size_t at;
    char const* because;
};
template <class Function>
void check_refusals(std::vector<refusal> const& all, Function parse)
{
    for (auto const& [text, at, because] : all) {
        std::string what;
        INFO("\"" << text.substr(0, 100) << "\"");
        CHECK(column([&, &text = text] { parse(text); }, &what) == at);
        INFO(what.substr(0, 400));
        CHECK(what.find(because) != std::string::npos);
        CHECK(what.substr(0, 9) == "adamant: ");
    }
}

// 4 cores of two PUs, n and n+4, of which PU 5 is offline; NUMA nodes 0 and 7, and 9 which is memory only.
machine small_machine()
{
    machine m;
    m.source = "the test's machine";
    m.cores = {{.pus = {0, 4}}, {.pus = {1}}, {.pus = {2, 6}}, {.pus = {3, 7}}};
    m.packages = {{{0, 1, 4}}, {{2, 3, 6, 7}}};
    m.nodes = {{.os_index = 0, .bytes = 0, .pus = {0, 1, 4}},
               {.os_index = 7, .bytes = 0, .pus = {2, 3, 6, 7}},
               {.os_index = 9, .bytes = 0, .pus = {}}};
    m.allowed = m.pus();
    m.offline = {5};
    return m;
}

// A text of the grammar, and what it means.
struct sentence {
    std::string text;
    model meaning;
};
std::string number(unsigned n, test::random_bits& random)
{
    return (random.below(16) == 0 ? "00" : "") + std::to_string(n);
}
sentence some_list(test::random_bits& random)
{
    sentence made;
    for (std::size_t n = 1 + random.below(4); n > 0; --n) {
        unsigned const first = some_index(random);
        unsigned last = first;
        unsigned stride = 1;
        made.text += number(first, random);
        if (random.below(2) == 0) {
            last = std::min(first + static_cast<unsigned>(random.below(70)), index_set::max_index);
            made.text += '-' + number(last, random);
            if (random.below(3) == 0) {
                stride = 1 + static_cast<unsigned>(random.below(random.below(8) == 0 ? 60000 : 5));
                made.text += ':' + number(stride, random);
            }
        }
        for (unsigned i = first; i <= last; i += stride)
            made.meaning.insert(i);
        if (n > 1)
            made.text += ',';
    }
    return made;
}
sentence some_mask(test::random_bits& random)
{
    static char const digits[] = "0123456789abcdef0123456789ABCDEF";
    bool const grouped = random.below(2) == 0;
    std::size_t const count = 1 + random.below(30);
    sentence made{random.below(4) == 0 ? "0X" : "0x", {}};
    for (std::size_t left = count; left > 0; --left) {
        if (grouped && left != count && left % 8 == 0)
            made.text += ',';
        std::size_t const digit = random.below(32);
        made.text += digits[digit];
        for (unsigned b = 0; b < 4; ++b)
            if (digit % 16 >> b & 1)
                made.meaning.insert(static_cast<unsigned>(left - 1) * 4 + b);
    }
    return made;
}
sentence some_sentence(test::random_bits& random)
{
    static char const* const spaces[] = {"", "", "", " ", "\t ", "\n"};
    sentence made = random.below(2) == 0 ? some_list(random) : some_mask(random);
    made.text = spaces[random.below(6)] + made.text + spaces[random.below(6)];
    return made;
}

// Nearly right, or bytes.
std::string some_mutant(std::string text, test::random_bits& random)
{
    static constexpr char alphabet[] =
        "0123456789abcdefABCDEFxX,,,---:::+++ \t\n\0\x01\x7f\x80\xff\xc3\xa9numacorepackage:";
    if (random.below(10) == 0) {
        text.resize(random.below(20));
        for (char& c : text)
            c = static_cast<char>(random());
        return text;
    }
    for (std::size_t n = 1 + random.below(3); n > 0; --n) {
        std::size_t const at = random.below(text.size() + 1);
        std::size_t const length = random.below(6);
        switch (random.below(5)) {
        case 0: text.erase(at, 1); break;
        case 1: text.insert(at, 1, alphabet[random.below(sizeof alphabet - 1)]); break;
        case 2: text.insert(at, text.substr(random.below(text.size() + 1), length)); break;
        case 3: text.erase(at, length); break;
        default:
            if (at < text.size())
                text[at] = alphabet[random.below(sizeof alphabet - 1)];
        }
    }
    return text;
}

// Whether a text was read. Then its list and its mask must read as the same set; else the error must point into it.
// Another exception than invalid_argument ends the test.
template <class Parse>
bool read_or_refused(std::string const& text, Parse parse)
{
    index_set set;
    try {
        set = parse(text);
    } catch (invalid_argument const& error) {
        std::string const what = error.what();
        std::size_t const last = what.rfind('\n');
        std::size_t const caret = what.size() - last;
        bool const points = last != std::string::npos && what.back() == '^' && caret >= 4 && caret - 4 <= text.size();
        if (!points || what.size() > 3 * text.size() + 300 || what.find('\0') != std::string::npos) {
            INFO(what);
            FAIL("this error does not point into its text");
        }
        return false;
    }
    if (parse_index_set(to_list(set)) != set || parse_index_set(to_mask(set)) != set ||
        set.size() > index_set::max_index + 1) {
        INFO(to_list(set) << " or " << to_mask(set));
        FAIL("\"" << text << "\" was read as a set that does not read back");
    }
    return true;
}

void fuzz(std::size_t count, std::uint64_t seed)
{
    test::random_bits random(seed);
    machine const m = small_machine();
    static char const* const places[] = {"numa:0",    "numa:7",     "numa:0-9:7", "package:0-1",
                                         "package:1", "core:0-3:2", "core:3"};
    std::size_t read = 0;
    for (std::size_t i = 0; i < count; ++i) {
        sentence const right = some_sentence(random);
        if (i % 4 == 0) {
            if (to_model(parse_index_set(right.text)) != right.meaning ||
                to_model(parse_pus(right.text, m)) != right.meaning)
                FAIL("\"" << right.text << "\" was misread");
        }
        if (i % 2 == 0) {
            read += read_or_refused(some_mutant(right.text, random), parse_index_set);
        } else {
            std::string text = places[random.below(std::size(places))];
            for (std::size_t n = random.below(3); n > 0; --n)
                text += '+' + (random.below(2) == 0 ? places[random.below(std::size(places))] : right.text);
            read += read_or_refused(some_mutant(text, random), [&](std::string_view t) { return parse_pus(t, m); });
        }
    }
    CHECK(read > count / 10);
    CHECK(read < count - count / 10);
}

} // namespace

TEST_CASE("a set of indexes does what std::set does")
{
    test::random_bits random(1);
    for (int round = 0; round < 400; ++round) {
        model a = some_model(random);
        model b = some_model(random);
        index_set sa = to_set(a);
        index_set sb = to_set(b);
        if (random.below(3) == 0 && !a.empty()) { // what is erased leaves no trace
            unsigned const gone = random.below(2) == 0 ? *a.rbegin() : some_index(random);
            a.erase(gone);
            sa.erase(gone);
        }
        REQUIRE(to_model(sa) == a);
        REQUIRE(sa == to_set(a));
        REQUIRE(sa.size() == a.size());
        REQUIRE(sa.empty() == a.empty());
        if (!a.empty())
            REQUIRE(sa.front() == *a.begin());
        unsigned const i = some_index(random);
        REQUIRE(sa.contains(i) == (a.count(i) == 1));
        REQUIRE((sa == sb) == (a == b));
        REQUIRE((sa < sb) == (a < b));

        model both, either, only;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
        std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::inserter(either, either.end()));
        std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(only, only.end()));
        REQUIRE((sa & sb) == to_set(both));
        REQUIRE((sa | sb) == to_set(either));
        REQUIRE((sa - sb) == to_set(only));
        REQUIRE(sa.intersects(sb) == !both.empty());
        REQUIRE(sa.includes(sb) == std::includes(a.begin(), a.end(), b.begin(), b.end()));
        REQUIRE(to_set(either).includes(sa));

        index_set copy = sa; // a copy is independent
        copy.insert(12345);
        REQUIRE(to_model(sa) == a);
    }
    CHECK(index_set::range(3, 6) == index_set{3, 4, 5, 6});
    CHECK(index_set::range(7, 7) == index_set{7});
    CHECK(index_set::range(5, 4).empty());
    CHECK((index_set{1} < index_set{1, 2}));
    CHECK((index_set{1, 200} < index_set{2}));
}

TEST_CASE("indexes that no machine has are refused")
{
    index_set set{1};
    CHECK_NOTHROW(set.insert(index_set::max_index));
    CHECK_THROWS_AS(set.insert(index_set::max_index + 1), invalid_argument);
    CHECK_THROWS_AS(set.insert(0xffffffffu), invalid_argument);
    CHECK_THROWS_AS(index_set::range(0, 0xffffffffu), invalid_argument);
    set.erase(0xffffffffu);
    CHECK_FALSE(set.contains(0xffffffffu));
    CHECK(to_list(set) == "1,65535");
}

TEST_CASE("lists and masks that everybody writes are read and written")
{
    struct known {
        char const* text;
        char const* list;
        char const* mask;
    };
    known const all[] = {
        {"0,4-11,21-26,30-46", "0,4-11,21-26,30-46", "0x7fff,c7e00ff1"},
        {"0x7fffffff,00000001", "0,32-62", "0x7fffffff,00000001"},
        {"0-30:2", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "0x55555555"},
        {"0-31:2", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30", "0x55555555"},
        {"5-6:65535", "5", "0x20"},
        {"0x7fff,c7e00ff1", "0,4-11,21-26,30-46", "0x7fff,c7e00ff1"},
        {"0x7fffc7e00ff1", "0,4-11,21-26,30-46", "0x7fff,c7e00ff1"}, // without commas, as taskset writes it
        {"0XFF", "0-7", "0xff"},
        {"10", "10", "0x400"}, // not a mask
        {"3,1,2,1-3", "1-3", "0xe"},
        {" 007 ", "7", "0x80"},
        {"0x0", "", "0x0"},
        {"0x00000000,00000000", "", "0x0"},
        {"", "", "0x0"},
        {" \n", "", "0x0"},
        {"31,32", "31-32", "0x1,80000000"},
        {"65535", "65535", nullptr},
    };
    for (auto const& [text, list, mask] : all) {
        INFO("\"" << text << "\"");
        CHECK(to_list(parse_index_set(text)) == list);
        if (mask != nullptr)
            CHECK(to_mask(parse_index_set(text)) == mask);
    }
    std::string const zeros(16383, '0');
    CHECK(to_list(parse_index_set("0x8" + zeros)) == "65535");
    CHECK(to_list(parse_index_set("0x000" + zeros + "2")) == "1");
    CHECK(to_mask({65535}).size() == 2 + 16384 + 2047);
}

TEST_CASE("what is written is read back")
{
    test::random_bits random(2);
    for (int round = 0; round < 1000; ++round) {
        index_set const set = to_set(some_model(random));
        REQUIRE(parse_index_set(to_list(set)) == set);
        REQUIRE(parse_index_set(to_mask(set)) == set);
    }
}

TEST_CASE("an error points at the character that does not belong")
{
    using std::string_literals::operator""s;
    check_refusals(
        {
            {"0,4-", 5, "a number is missing"},
            {"0,", 3, "a number is missing"},
            {"0,,4", 3, "a number is expected"},
            {"-1", 1, "a number is expected"},
            {"a", 1, "a number is expected"},
            {"0,4-x", 5, "a number is expected"},
            {"0,4-2", 3, "4-2 runs backwards"},
            {"0-30:0", 6, "stride of 0"},
            {"0-30:", 6, "a number is missing"},
            {"0-30:99999", 6, "above 65535"},
            {"3:2", 2, "unexpected text"},
            {"0-1-2", 4, "unexpected text"},
            {"0 4", 3, "unexpected text"},
            {"7+8", 2, "unexpected text"},
            {"10f", 3, "begin with 0x"},
            {"7C", 2, "begin with 0x"},
            {"65536", 1, "above 65535"},
            {"1,99999999999999999999999", 3, "above 65535"},
            {"0-65536", 3, "above 65535"},
            {"0x", 3, "digit is missing"},
            {"0xg", 3, "digit is expected"},
            {"0xfg", 4, "unexpected text"},
            {"0x1,", 5, "digit is missing"},
            {"0x1,,00000001", 5, "digit is expected"},
            {"0x1,ff", 5, "a group of 2 digits"},
            {"0x1,000000001", 5, "a group of 9 digits"},
            {"0x123456789,00000001", 3, "a group of 9 digits"},
            {"  0x1" + std::string(16384, '0'), 5, "above 65535"},
            {"0\0001"s, 2, "\"0?1\""},
            {"\0"s, 1, "\"?\""},
            {"1,\xc3\xa9", 3, "\"1,??\""},
            {"\t1\n\t,", 5, "\"?1??,\""},
        },
        [](std::string const& text) { (void)parse_index_set(text); });
}

TEST_CASE("places in a machine are read")
{
    machine const m = small_machine();
    auto const read = [&](char const* text) { return to_list(parse_pus(text, m)); };
    CHECK(read("numa:7") == "2-3,6-7");
    CHECK(read("numa:0") == "0-1,4");
    CHECK(read("numa:0,7") == "0-4,6-7");
    CHECK(read("numa:0-7:7") == "0-4,6-7");
    CHECK(read("package:1") == "2-3,6-7");
    CHECK(read("core:0-1") == "0-1,4");
    CHECK(read("core:1") == "1");
    CHECK(read("core:0-3:3") == "0,3-4,7");
    CHECK(read("core:0+numa:7") == "0,2-4,6-7");
    CHECK(read(" package:0 + core:3 ") == "0-1,3-4,7");
    CHECK(read("0x3+5") == "0-1,5");
    CHECK(read("core:0+0-3:3+0x80") == "0,3-4,7");
    CHECK(read("0,4-11,21-26") == "0,4-11,21-26"); // what the machine lacks is for selection to say
    CHECK(read("0-30:10") == "0,10,20,30");
    CHECK(read("0xff") == "0-7");
    CHECK(read("").empty());
    CHECK(read(" ").empty());
}

TEST_CASE("places that a machine does not have are refused, and the error points at them")
{
    machine const m = small_machine();
    check_refusals(
        {
            {"numa:1", 1, "no NUMA node 1 with PUs; the test's machine has 3"},
            {"numa:9", 1, "no NUMA node 9 with PUs"}, // memory only
            {"numa:0-9", 1, "no NUMA node 1"},
            {"package:2", 1, "no package 2 with PUs; the test's machine has 2"},
            {"core:0+core:2-4", 8, "no core 4 with PUs; the test's machine has 4"},
            {"core:", 6, "a number is missing"},
            {"core:x", 6, "a number is expected"},
            {"core:3-1", 6, "runs backwards"},
            {"core:70000", 6, "above 65535"},
            {"cpu:1", 1, "numa:, package:, core:, a list or a mask is expected"},
            {"node:1", 1, "is expected"},
            {"numa:0 core:1", 8, "unexpected text"},
            {"numa:0,core:1", 8, "a number is expected"},
            {"numa:0+", 8, "is expected"},
            {"numa:0++1", 8, "is expected"},
            {"+0", 1, "is expected"},
            {"0 +", 4, "is expected"},
            {"0+1x", 4, "unexpected text"},
            {"core:0+0xg", 10, "digit is expected"},
            {"core:0+0x1" + std::string(16384, '0'), 10, "above 65535"},
            {"core:0+5-2", 8, "runs backwards"},
            {"numa", 1, "is expected"},
            {"1,2,z", 5, "is expected"},
        },
        [&](std::string const& text) { (void)parse_pus(text, m); });
}

TEST_CASE("any text is read or refused")
{
    fuzz(4000, 3);
}

TEST_CASE("any of 50000 texts is read or refused", "[slow]")
{
    fuzz(50000, 4);
}

TEST_CASE("long texts take neither long nor much memory")
{
    machine const m = small_machine();
    std::size_t const n = 200000;
    std::string ones, groups = "0x1", places;
    for (std::size_t i = 0; i < n; ++i)
        ones += "1,";
    for (std::size_t i = 0; i < n / 8; ++i)
        groups += ",00000000", places += "core:1+";
    std::string const texts[] = {std::string(n, '9'),
                                 std::string(n, ' '),
                                 "0x" + std::string(n, 'f'),
                                 "0x" + std::string(n, '0'),
                                 ones,
                                 ones + '1',
                                 groups,
                                 places,
                                 places + "core:1",
                                 std::string(n, '+'),
                                 std::string(n, '\0')};
    std::size_t read = 0;
    for (std::string const& text : texts) {
        read += read_or_refused(text, parse_index_set);
        read += read_or_refused(text, [&](std::string_view t) { return parse_pus(t, m); });
    }
    CHECK(read == 7); // spaces, zeros, ones: twice; the places once
}
