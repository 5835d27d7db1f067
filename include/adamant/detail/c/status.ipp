// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: versions, statuses and errors. Translates exceptions to statuses.
#include <adamant/adamant.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include <adamant/detail/c/errors.hpp>
#include <adamant/detail/c/names.hpp>
#include <adamant/detail/core/abi.hpp>
#include <adamant/detail/core/utf8.hpp>

namespace {

// A fixed buffer, so that an error can be stored without memory, and late in a thread's life.
constinit thread_local char last_error[4096] = "";

} // namespace

namespace adamant::c {

adamant_status fail(adamant_status status, std::string_view text, std::span<c_name const> names) noexcept
{
    std::size_t n = 0;
    bool fits = true;
    each_piece_in_c(text, names, [&](std::string_view piece) {
        detail::each_utf8(piece, [&](std::string_view character) { // paths need not be UTF-8
            fits = fits && character.size() < sizeof last_error - n;
            if (fits)
                n += character.copy(last_error + n, character.size());
            return fits;
        });
    });
    last_error[n] = '\0';
    return status;
}

static adamant_status fail_unexpectedly(char const* reason) noexcept
{
    char text[512];
    std::snprintf(text, sizeof text, "adamant: internal error: %s. Please report this defect.", reason);
    return fail(ADAMANT_INTERNAL, text, {});
}

adamant_status status_of_exception(std::span<c_name const> names) noexcept
{
    try {
        throw;
    } catch (reduce_failed const& e) {
        return fail(ADAMANT_REDUCE_FAILED, e.what(), names);
    } catch (corrupted const& e) {
        return fail(ADAMANT_CORRUPTED, e.what(), names);
    } catch (invalid_argument const& e) {
        return fail(ADAMANT_INVALID_ARGUMENT, e.what(), names);
    } catch (unavailable const& e) {
        return fail(ADAMANT_UNAVAILABLE, e.what(), names);
    } catch (device_error const& e) {
        return fail(ADAMANT_DEVICE_FAILED, e.what(), names);
    } catch (std::bad_alloc const&) {
        return fail(ADAMANT_OUT_OF_MEMORY, "adamant: out of memory", names);
    } catch (std::length_error const&) {
        return fail(ADAMANT_OUT_OF_MEMORY,
                    "adamant: a requested size exceeds any memory. Was a negative size converted?", names);
    } catch (std::system_error const& e) {
        return fail(ADAMANT_UNAVAILABLE, e.what(), names);
    } catch (std::exception const& e) {
        return fail_unexpectedly(e.what());
    } catch (...) {
        return fail_unexpectedly("an exception that does not derive from std::exception");
    }
}

} // namespace adamant::c

#define ADAMANT_TEXT_(x) #x
#define ADAMANT_TEXT(x) ADAMANT_TEXT_(x)

uint32_t adamant_c_version(void)
{
    return ADAMANT_C_VERSION;
}
const char* adamant_version(void)
{
    return ADAMANT_TEXT(ADAMANT_VERSION_MAJOR) "." ADAMANT_TEXT(ADAMANT_VERSION_MINOR) "." ADAMANT_TEXT(
        ADAMANT_VERSION_PATCH);
}
const char* adamant_last_error(void)
{
    return last_error;
}
const char* adamant_status_name(adamant_status status)
{
    switch (status) {
    case ADAMANT_OK: return "ok";
    case ADAMANT_INVALID_ARGUMENT: return "invalid argument";
    case ADAMANT_UNAVAILABLE: return "unavailable";
    case ADAMANT_OUT_OF_MEMORY: return "out of memory";
    case ADAMANT_CORRUPTED: return "corrupted";
    case ADAMANT_REDUCE_FAILED: return "reduce failed";
    case ADAMANT_INTERNAL: return "internal";
    case ADAMANT_DEVICE_FAILED: return "device failed";
    default: return "unknown status";
    }
}
